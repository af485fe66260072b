"""The strip above all tabs: mark and name, this machine, the run that is on."""
