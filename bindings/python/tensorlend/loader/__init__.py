"""Batches that worker processes collate directly into lent memory.

`tensorlend.torch.SharedLoader` and `tensorlend.numpy.SharedLoader` are the public classes.
docs/loader.md is the manual.

A trainer process has a *crew* of worker processes. For each epoch, the trainer sends its workers an
*order*. An order assigns shares of a permutation that is known from the start, tasks that the
trainer sends one by one, or whole iterable datasets. A worker *packs* each batch into one message
of its own stream. The message consists of the batch's tensors (*leaves*), each written in place,
and a few bytes that describe how the tensors are *nested*. The trainer receives the messages in
turn, and returns the leaves as tensors that view the slots. A *kit* has the code that differs
between numpy and torch.
"""
