"""What a model is, how it is loaded, given an adapter, and given faster modules."""
