"""A decoder that matches by structure, computed by hand-derived layers in place of the model's own and autograd."""
