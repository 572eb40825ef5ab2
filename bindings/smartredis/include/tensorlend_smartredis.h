// An extension of the SmartRedis interface: tensors that a program writes and reads in shared memory, without a copy.
#ifndef TENSORLEND_SMARTREDIS_H
#define TENSORLEND_SMARTREDIS_H
#ifdef __cplusplus
#include "sr_enums.h"
#include <cstddef>
#include <memory>
#include <vector>

namespace SmartRedis {

/// A tensor that the program writes where its readers will read it: Client::draft_tensor makes it, Client::put_tensor
/// publishes it. One thread at a time uses it.
class TensorDraft {
public:
    TensorDraft() = default;
    /// The elements, in the order of the layout that was given; nullptr after the draft was published.
    void* data() const;
    size_t bytes() const;

private:
    friend class Client;
    struct State;
    std::shared_ptr<State> state_;
};

/// A tensor that the program reads in place. Its memory is not reused while the lease or a copy of it lives, whatever
/// other programs put under its name.
class TensorLease {
public:
    TensorLease() = default;
    const void* data() const;
    const std::vector<size_t>& dims() const;
    SRTensorType type() const;
    /// SRMemLayoutContiguous or SRMemLayoutFortranContiguous.
    SRMemoryLayout layout() const;

private:
    friend class Client;
    struct State;
    std::shared_ptr<State> state_;
};

} // namespace SmartRedis

#endif
#endif
