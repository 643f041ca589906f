"""What the kernel and the memory of other processes say of them."""
