"""The blocks that a decoder layer is made of, one file each; a layer is a list of them on one residual stream."""
