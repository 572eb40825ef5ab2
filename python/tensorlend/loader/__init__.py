"""Batches that worker processes collate straight into lent memory.

`tensorlend.torch.SharedLoader` and `tensorlend.numpy.SharedLoader` are the two doors to it; docs/loader.md is the manual.

A trainer has a *crew* of workers. What all of them do in one epoch is an *order*: shares of a permutation that is known from
the start, tasks that are handed out one by one, or whole iterable datasets. A worker *packs* each batch into a message of its own
stream: the tensors as *leaves*, each written in place, and a few bytes that say how they are *nested*. The trainer takes
the messages in turn and shows the leaves as tensors that look at the slots. What differs between numpy and torch is a *kit*.
"""
