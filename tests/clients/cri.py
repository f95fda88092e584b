"""A pod with one container, as a kubelet asks a container runtime for it, and what a program in it says.

    cri.py SOCKET IMAGE DEVICE VARIABLE... -- COMMAND...

Speaks the Container Runtime Interface (runtime.v1) over gRPC. Its messages are few and small, so they are written
here by hand: field numbers are those of `api.proto` of Kubernetes. Prints what COMMAND prints in the running
container; everything is removed again, whatever happens. Exit code: COMMAND's.
"""

import sys

import grpc

SERVICE = "/runtime.v1.RuntimeService/"
BOUND_S = 60


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(*fields):
    """Fields are pairs of a number and a text, bytes, a whole number, or a list of those."""
    out = b""
    for number, value in fields:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int):
                out += varint(number << 3) + varint(one)
            else:
                content = one.encode() if isinstance(one, str) else one
                out += varint(number << 3 | 2) + varint(len(content)) + content
    return out


def parse(data):
    """The fields of a message, the last of each number."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        key = number()
        if key & 7 == 0:
            fields[key >> 3] = number()
        else:
            length = number()
            fields[key >> 3] = data[at : at + length]
            at += length
    return fields


def main():
    socket, image, device, *rest = sys.argv[1:]
    split = rest.index("--")
    variables, command = rest[:split], rest[split + 1 :]
    channel = grpc.insecure_channel("unix://" + socket)

    def call(method, *fields):
        ask = channel.unary_unary(SERVICE + method)
        return parse(ask(message(*fields), timeout=BOUND_S, wait_for_ready=True))

    # The host's network (2: NODE), so that no plugin for networks is needed.
    options = message((1, 2), (2, 1), (3, 1))
    linux = message((2, message((1, options))))
    identity = message((1, "pod"), (2, "0001"), (3, "default"))
    pod = message((1, identity), (8, linux))
    sandbox = call("RunPodSandbox", (1, pod))[1].decode()
    try:
        pairs = [message((1, k), (2, v)) for k, _, v in (one.partition("=") for one in variables)]
        config = message(
            (1, message((1, "held"))),
            (2, message((1, image))),
            (3, ["/bin/sleep", "600"]),
            (6, pairs),
            (17, message((1, device))),
        )
        container = call("CreateContainer", (1, sandbox), (2, config), (3, pod))[1].decode()
        call("StartContainer", (1, container))
        answer = call("ExecSync", (1, container), (2, command), (3, BOUND_S))
        print("container", container)
        sys.stdout.write(answer.get(1, b"").decode())
        sys.stderr.write(answer.get(2, b"").decode())
        code = answer.get(3, 0)
    finally:
        call("StopPodSandbox", (1, sandbox))
        call("RemovePodSandbox", (1, sandbox))
    sys.exit(code)


main()
