"""Collectives: inside a block, between the blocks of a process, and between processes."""

from gdt.comm import nccl, transport

transport.register_transport("cuda", nccl.transport)
