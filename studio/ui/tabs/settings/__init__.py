"""The Settings tab: how the studio looks and works, its folders, sharing, its end."""
