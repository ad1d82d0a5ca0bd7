"""Hostile files of weights, written opcode by opcode: each does to PyTorch what its name says."""

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping

HOOKS = b"ccollections\nOrderedDict\n)R"
# t = (t, t), sixty times: its hash takes 2^60 steps
DOUBLED = b")q\0" + b"h\0\x86q\0" + b"h\0h\0\x86q\0" * 60
LAUGHS = b"]q\0" + b"".join(
    b"](" + bytes([ord("h"), n]) * 10 + b"eq" + bytes([n + 1]) for n in range(20)
)
VALUE = struct.pack("<f", 1.0)
PLACE = b"<place>"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(count: int = 1, key: str = "0", kind: str = "Float") -> bytes:
    """A storage of as many elements; what the older format says more is marked."""
    named = f"ctorch\n{kind}Storage\n".encode() + text(key) + text("cpu")
    return b"(" + text("storage") + named + number(count) + PLACE + b"tQ"


def tensor(
    held: bytes = storage(),
    offset: int = 0,
    shape: tuple[int, ...] = (1,),
    strides: tuple[int, ...] = (1,),
    rest: bytes = b"\x89" + HOOKS,
) -> bytes:
    place = number(offset) + numbers(*shape) + numbers(*strides)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + held + place + rest + b"tR"


def call(function: str, arguments: bytes) -> bytes:
    module, _, name = function.rpartition(".")
    return f"c{module}\n{name}\n(".encode() + arguments + b"tR"


def call_often(function: str, arguments: bytes, times: int) -> bytes:
    """Call it with the same arguments again and again; what it made stays on the stack."""
    module, _, name = function.rpartition(".")
    return f"c{module}\n{name}\nq\0(".encode() + arguments + b"tq\1R" + b"h\0h\1R" * times


def entry(value: bytes, name: str = "fc.weight") -> bytes:
    """A dictionary with one entry."""
    return b"\x80\x02}" + text(name) + value + b"s."


def zipped(contents: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def archive(pickled: bytes, values: bytes = VALUE) -> bytes:
    plain = pickled.replace(PLACE, b"")
    return zipped(
        {"a/data.pkl": plain, "a/byteorder": b"little", "a/data/0": values, "a/version": b"3\n"}
    )


def series(pickled: bytes, values: bytes = VALUE) -> bytes:
    """The format before PyTorch 1.6."""
    start = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True})
    keys = pickle.dumps(["0"] if PLACE in pickled else [], 2)
    values = struct.pack("<q", len(values) // 4) + values if PLACE in pickled else b""
    return (
        b"".join(pickle.dumps(each, 2) for each in start)
        + pickled.replace(PLACE, b"N")
        + keys
        + values
    )


TENSORS = {
    "beyond its storage": tensor(shape=(10**6,)),
    "behind its storage": tensor(offset=1),
    "before its storage": tensor(offset=-1),
    "backwards": tensor(storage(), 0, (2,), (-1,)),
    "overflowing": tensor(shape=(3, 3), strides=(2**62, 2**62)),
    "one value, 10^12 elements": tensor(shape=(10**12,), strides=(0,)),
    "axes without strides": tensor(shape=(1, 1)),
    "a storage that lies": tensor(storage(10**6), 0, (10**6,)),
    "a storage of 10^12": tensor(storage(10**12)),
    "a storage of -1": tensor(storage(-1), 0, (0,)),
    "a storage that is not there": tensor(storage(key="77")),
    "a storage from elsewhere": tensor(storage(2, key="../version", kind="Byte")),
    "a storage of strange elements": tensor(storage(kind="QInt8")),
    "hooks": tensor(rest=b"\x89}K\0K\5s"),
    "a number of hooks": tensor(rest=b"\x89K\5"),
    "text for a gradient": tensor(rest=text("yes") + HOOKS),
    "a conjugate": tensor(rest=b"\x89" + HOOKS + b"}" + text("conj") + b"\x88s"),
    "attributes": call(
        "torch._utils._rebuild_parameter_with_state",
        tensor() + b"\x88" + HOOKS + b"}" + text("a") + b"K\1s",
    ),
    "no values": call(
        "torch._utils._rebuild_meta_tensor_no_storage",
        b"ctorch\nfloat32\n" + numbers(10**12) * 2 + b"\x89",
    ),
    "a tensor's own class": call("torch.Tensor", number(10**11)),
    "a storage's own class": call("torch.FloatStorage", number(10**11)),
    "a parameter of a number": call("torch._utils._rebuild_parameter", b"K\1\x88" + HOOKS),
}

PICKLES = {
    "a tuple of tuples as key": b"\x80\x02}" + DOUBLED + b"Ns.",
    "a tuple as key": b"\x80\x02}K\1K\2\x86Ns.",
    "numbers of one hash as keys": b"\x80\x02}("
    + b"".join(number(k * (2**61 - 1)) + b"N" for k in range(1, 3_000))
    + b"u.",
    "a fraction as key": b"\x80\x02}G" + struct.pack(">d", 0.5) + b"Ns.",
    "in itself": entry(b"h\0", "state_dict").replace(b"}", b"}q\0", 1),
    "in itself by a list": b"\x80\x02}q\0" + text("state_dict") + b"]h\0as.",
    "its own metadata": b"\x80\x02" + HOOKS + b"q\0}" + text("_metadata") + b"h\0sb.",
    "grown when in another": b"\x80\x02}q\0" + text("a") + b"]q\1sh\1K\1a0.",
    "5,000 deep": b"\x80\x02" + (b"}" + text("state_dict")) * 5_000 + b"}" + b"s" * 5_000 + b".",
    "5,000 deep in tuples": b"\x80\x02)" + b"\x85" * 5_000 + b".",
    "10^20 entries by sharing": b"\x80\x02" + LAUGHS + b".",
    "10^20 letters by sharing": b"\x80\x02" + LAUGHS.replace(b"]", text("x" * 1_000), 1) + b".",
    "methods overwritten": b"\x80\x02"
    + HOOKS
    + text("a")
    + tensor()
    + b"s}"
    + text("values")
    + b"K\5sb.",
    "bytes by the square": entry(
        call("_codecs.encode", text("\u4e00\u4e01" * 50_000) + text("punycode"))
    ),
    "1,000 copies of a text": b"\x80\x02"
    + call_often("_codecs.encode", text("x" * 200_000) + text("latin1"), 1_000)
    + b"N.",
    "100 copies of a dictionary": b"\x80\x02"
    + call_often(
        "collections.Counter",
        b"}(" + b"".join(number(each) + b"N" for each in range(3_000)) + b"u",
        100,
    )
    + b"N.",
    "200 copies of pairs": b"\x80\x02"
    + call_often(
        "collections.OrderedDict",
        b"](" + b"".join(number(each) + b"N\x86" for each in range(1_500)) + b"e",
        200,
    )
    + b"N.",
    "10^11 bytes": entry(call("builtins.bytearray", number(10**11))),
    "a set of a tuple of tuples": b"\x80\x02" + b"cbuiltins\nset\n](" + DOUBLED + b"e\x85R.",
    "counted tuples of tuples": b"\x80\x02" + b"ccollections\nCounter\n](" + DOUBLED + b"e\x85R.",
    "keyword arguments": b"\x80\x02ccollections\nOrderedDict\n}R.",
    "a size as a pair": b"\x80\x02ccollections\nOrderedDict\n]"
    + call("torch.Size", numbers(1, 2))
    + b"a\x85R.",
    "an odd number of items": b"\x80\x02}(K\1u.",
    "nothing on the stack": b"\x80\x02s.",
    "no mark": b"\x80\x02t.",
    "a memory that it has not": b"\x80\x02h\5.",
    "no end": b"\x80\x02}",
    "a call of a text": entry(text("torch.device") + b"(" + text("cpu") + b"tR"),
} | {f"tensor: {name}": entry(made) for name, made in TENSORS.items()}
"""What is refused, by what it is."""
