"""The Dataset tab: where examples come from, how they are read, what is learned of them."""
