"""Convolution and pooling of channels-last images: ops of tiles, and what cuts images into tiles.

Along an axis that is split, every device gets the rows and columns that its results need (see
`gdt.ops.blocks.windows`), and computes from its tile alone. The three ops of a convolution
(results, gradient in the image, gradient in the kernel) are each other's gradients.
"""
