"""Who asks: how the owner, guests and programs are known, what each may do and take, and headers of every answer."""
