"""Everything that connects: searching, fetching, the token that goes along, and the wish to stay offline."""
