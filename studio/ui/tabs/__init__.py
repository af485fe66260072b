"""The tabs of the window, one file each."""
