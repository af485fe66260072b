"""The Hyperparameters tab: goals and plain choices, every setting, presets."""
