"""Exceptions: each is what programs of Python expect, and says what to do."""

import builtins

import pytest

import tensorlend

BASES = {
    tensorlend.ArgumentError: ValueError,
    tensorlend.DTypeError: TypeError,
    tensorlend.NotFoundError: KeyError,
    tensorlend.TimeoutError: builtins.TimeoutError,
    tensorlend.DisconnectedError: ConnectionError,
    tensorlend.RemoteError: ConnectionError,
    tensorlend.LimitError: MemoryError,
    tensorlend.PermissionError: builtins.PermissionError,
    tensorlend.DeviceError: RuntimeError,
    tensorlend.StreamFullError: tensorlend.Error,
    tensorlend.StreamEndedError: tensorlend.Error,
}


@pytest.mark.parametrize("error", BASES, ids=lambda error: error.__name__)
def test_each_is_an_error_of_the_package_and_a_built_in_one(error):
    assert issubclass(error, tensorlend.Error)
    assert issubclass(error, BASES[error])


def test_every_exception_that_is_exported_is_tested_here():
    exported = [getattr(tensorlend, name) for name in tensorlend.__all__]
    errors = {one for one in exported if isinstance(one, type) and issubclass(one, Exception)}
    assert errors == {*BASES, tensorlend.Error}


def test_a_missing_name_reads_well(client):
    with pytest.raises(KeyError) as caught:
        client.get("weights")
    assert str(caught.value) == 'there is no tensor named "weights": see `tensorlend ls`, or wait for it with wait_for'


def test_objects_are_made_by_a_client_only():
    names = "Client Dataset Device DeviceDraft DeviceLease Draft Embedded Info Lease LegacyExport Message Stream Subscription"
    for name in names.split():
        with pytest.raises(TypeError):
            getattr(tensorlend, name)()
