"""The Doctor tab: what this machine can do, what it lacks, what an error means."""
