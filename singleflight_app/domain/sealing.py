"""Keys that seal stored results: 32 random bytes each, written in base64."""

import base64

KEY_BYTES = 32
_URL_SAFE = str.maketrans("-_", "+/")  #: both alphabets of base64 are in use


def decoded_key(text: object) -> bytes:
    """Return the bytes of a key; ValueError, without the key in it, when it is none."""
    try:
        key = base64.b64decode(text.translate(_URL_SAFE), validate=True) if isinstance(text, str) else b""
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key is not {KEY_BYTES} bytes in base64")
    return key


def is_key(text: object) -> bool:
    """Tell whether a text is a key."""
    try:
        decoded_key(text)
    except ValueError:
        return False
    return True
