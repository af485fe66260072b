"""Pure decisions: what runs how, how much memory and time it takes, what is wrong with a recipe or a machine."""
