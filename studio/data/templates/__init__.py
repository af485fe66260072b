"""Chat templates of the common model families, each written from its published format in a .jinja file of its own."""
