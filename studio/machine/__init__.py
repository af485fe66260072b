"""What this machine is and has: the workspace, the installation, detection and repairs."""
