"""Rows of all widths for which kernels differ."""

# Every way in which rows are spread over threads: few values, a warp's, a block's, more than registers hold; with packs
# of 16 bytes and without.
WIDTHS = [
    (5, 1), (3, 7), (9, 32), (4, 128), (3, 129), (530, 512), (531, 1000), (530, 97), (2, 1021), (2, 3072), (2, 9001),
    (1, 40000), (2, 70001), (70, 49), (530, 197), (30, 1500), (530, 1501), (3, 2041), (3, 3001), (3, 8193),
]  # fmt: skip
# Rows that are staged: as many as fill a block, and some of the next one's.
NARROW = [*range(1, 21), 31, 32, 33, 49, *range(55, 68), 100, 129, *range(195, 203), 248, 249, 250, 255, 257]
