"""What MachineFacts are collected from: cheap looks at the system, and probes of libraries in child processes."""
