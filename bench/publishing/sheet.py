"""The images that chapter 18's variants make, as a PNG: each pixel as a square of several, a row for each variant."""
import struct
import zlib

SCALE = 2  # pixels of the PNG on a side of each


def read_netpbm(content):
    """(width, height, channels, bytes) of a PGM or PPM as chapter 18 writes it."""
    kind, sizes, _, pixels = content.split(b"\n", 3)
    width, height = map(int, sizes.split())
    return width, height, {b"P5": 1, b"P6": 3}[kind], pixels


def png_of(content, scale=SCALE):
    """The PNG of what --images wrote."""
    width, height, channels, pixels = read_netpbm(content)
    lines = bytearray()
    for row in range(height):
        line = pixels[row * width * channels:(row + 1) * width * channels]
        wide = b"".join(line[at:at + channels] * scale for at in range(0, len(line), channels))
        lines += (b"\0" + wide) * scale

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width * scale, height * scale, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(lines), 9)) + chunk(b"IEND", b"")
