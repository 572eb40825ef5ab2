// The client's construction, and its calls on tensors.
#include "connection.h"
#include <cstring>

namespace SmartRedis {

struct TensorDraft::State {
    Draft draft;
};

struct TensorLease::State {
    Lease lease;
    const tensorlend_tensor* tensor;
    std::vector<size_t> dims;
    SRMemoryLayout layout;
};

namespace {
bool is_column_major(const tensorlend_tensor& tensor) {
    int64_t step = 1;
    for (uint32_t at = 0; at < tensor.ndim; at++) {
        if (tensor.shape[at] != 1 && tensor.strides[at] != step)
            return false;
        step *= int64_t(tensor.shape[at]);
    }
    return true;
}

SRTensorType known_type(const tensorlend_tensor& tensor, const std::string& name) {
    const SRTensorType type = type_of(tensor.dtype);
    if (type == SRTensorTypeInvalid)
        throw SRTypeException("tensor \"" + name + "\" has elements of type " + tensorlend_dtype_name(tensor.dtype) +
                              ", which SmartRedis does not have: publish another type");
    return type;
}

void check_type(SRTensorType type, const std::string& name) {
    if (element_bytes(type) == 0)
        throw SRTypeException("tensor \"" + name + "\": element type " + std::to_string(int(type)) + " is unknown");
}
} // namespace

Client::Client(ConfigOptions* cfgopts, const std::string& logger_name, const bool* cluster) : SRObject(logger_name) {
    log_data(LLDebug, "new client");
    const std::unique_ptr<ConfigOptions> own = cfgopts == nullptr ? ConfigOptions::create_from_environment("") : nullptr;
    impl_.reset(new Impl(cfgopts == nullptr ? *own : *cfgopts, this, cluster));
    _redis_server = impl_.get();
}

Client::Client(const char* logger_name) : Client(nullptr, logger_name == nullptr ? "" : logger_name, nullptr) {}

Client::Client(ConfigOptions* cfgopts, const std::string& logger_name)
    : Client(cfgopts != nullptr ? cfgopts : throw SRParameterException("the options are NULL"), logger_name, nullptr) {}

Client::Client(bool cluster, const std::string& logger_name) : Client(nullptr, logger_name, &cluster) {}

Client::Client(Client&& client) = default;
Client& Client::operator=(Client&& client) = default;
Client::~Client() = default;

std::string Client::to_string() const {
    std::string addresses;
    for (const SRAddress& address : impl_->addresses)
        addresses += (addresses.empty() ? "" : ", ") + address.to_string();
    return "Client " + get_context() + "\n  daemon: tensorlend " + tensorlend_client_daemon_version(impl_->get()) +
           "\n  namespace: " + tensorlend_client_namespace(impl_->get()) + "\n  SSDB: " + addresses + "\n";
}

void Client::put_tensor(const std::string& name, const void* data, const std::vector<size_t>& dims, const SRTensorType type,
                        const SRMemoryLayout mem_layout) {
    check_type(type, name);
    check_tensor(name, data, dims, mem_layout);
    const std::string key = impl_->prefixes.tensor(name, false), what = "tensor \"" + key + "\"";
    Draft draft = create_draft(impl_->get(), type, dims, mem_layout, what);
    void* to = tensorlend_draft_data(draft.get());
    // A column-major draft has the order of the caller's memory.
    if (mem_layout == SRMemLayoutNested)
        to_row_major(to, data, dims, element_bytes(type), mem_layout);
    else
        std::memcpy(to, data, tensorlend_draft_bytes(draft.get()));
    check(tensorlend_publish(draft.place(), key.c_str(), nullptr), what);
}

void Client::get_tensor(const std::string& name, void*& data, std::vector<size_t>& dims, SRTensorType& type,
                        const SRMemoryLayout mem_layout) {
    check_layout(mem_layout);
    const std::string key = impl_->prefixes.tensor(name, true);
    const Impl::Found found = impl_->find_tensor(key);
    const Tensor tensor = copied(found.lease.get(), *found.tensor, found.member, "tensor \"" + key + "\"");
    data = impl_->give(tensor, mem_layout);
    dims = tensor.dims();
    type = tensor.type();
}

void Client::get_tensor(const std::string& name, void*& data, size_t*& dims, size_t& n_dims, SRTensorType& type,
                        const SRMemoryLayout mem_layout) {
    std::vector<size_t> sizes;
    get_tensor(name, data, sizes, type, mem_layout);
    dims = impl_->give(sizes);
    n_dims = sizes.size();
}

void Client::unpack_tensor(const std::string& name, void* data, const std::vector<size_t>& dims, const SRTensorType type,
                           const SRMemoryLayout mem_layout) {
    if (mem_layout == SRMemLayoutContiguous && dims.size() > 1)
        throw SRRuntimeException("contiguous memory has one dimension, its number of elements; " +
                                 std::to_string(dims.size()) + " were given");
    check_tensor(name, data, dims, mem_layout);
    const std::string key = impl_->prefixes.tensor(name, true), what = "tensor \"" + key + "\"";
    const Impl::Found found = impl_->find_tensor(key);
    const tensorlend_tensor& tensor = *found.tensor;
    const Dims stored(tensor.shape, tensor.shape + tensor.ndim);
    if (elements(dims) != elements(stored) || (mem_layout == SRMemLayoutNested && dims != stored))
        throw SRRuntimeException(what + " has " + std::to_string(elements(stored)) + " elements in " +
                                 std::to_string(stored.size()) + " dimensions, and the memory " + std::to_string(elements(dims)) +
                                 " in " + std::to_string(dims.size()));
    if (known_type(tensor, key) != type)
        throw SRRuntimeException(what + " has type " + type_name(type_of(tensor.dtype)) + ", and the memory " + type_name(type));
    const size_t element = element_bytes(type);
    if (mem_layout == SRMemLayoutContiguous)
        copy_elements(data, found.lease.get(), tensor, found.member, what);
    else if (mem_layout == SRMemLayoutFortranContiguous && tensor.data != nullptr && is_column_major(tensor))
        std::memcpy(data, tensor.data, elements(stored) * element);
    else if (tensor.data != nullptr && tensor.row_major)
        from_row_major(data, tensor.data, stored, element, mem_layout);
    else
        from_row_major(data, copied(found.lease.get(), tensor, found.member, what).data(), stored, element, mem_layout);
}

void Client::rename_tensor(const std::string& old_name, const std::string& new_name) {
    impl_->rename(impl_->prefixes.tensor(old_name, true), impl_->prefixes.tensor(new_name, false));
}

void Client::delete_tensor(const std::string& name) {
    const std::string key = impl_->prefixes.tensor(name, true);
    check(tensorlend_delete(impl_->get(), key.c_str(), nullptr), "tensor \"" + key + "\"");
}

void Client::copy_tensor(const std::string& src_name, const std::string& dest_name) {
    const std::string source = impl_->prefixes.tensor(src_name, true), target = impl_->prefixes.tensor(dest_name, false);
    const tensorlend_status status = tensorlend_copy(impl_->get(), source.c_str(), target.c_str(), nullptr);
    if (status == TENSORLEND_OK)
        return;
    if (status != TENSORLEND_NOT_FOUND)
        raise(status, "tensor \"" + source + "\"");
    // The source may be a tensor of a dataset.
    const Impl::Found found = impl_->find_tensor(source);
    const Tensor tensor = copied(found.lease.get(), *found.tensor, found.member, "tensor \"" + source + "\"");
    const std::vector<uint64_t> shape(tensor.dims().begin(), tensor.dims().end());
    check(tensorlend_put(impl_->get(), target.c_str(), dtype_of(tensor.type()), uint32_t(shape.size()), shape.data(), tensor.data(),
                         nullptr),
          "tensor \"" + target + "\"");
}

bool Client::tensor_exists(const std::string& name) { return impl_->key_exists(impl_->prefixes.tensor(name, true)); }

bool Client::poll_tensor(const std::string& name, int poll_frequency_ms, int num_tries) {
    return poll_key(impl_->prefixes.tensor(name, true), poll_frequency_ms, num_tries);
}

TensorDraft Client::draft_tensor(const std::vector<size_t>& dims, const SRTensorType type, const SRMemoryLayout mem_layout) {
    check_type(type, "draft");
    check_tensor("draft", this, dims, mem_layout);
    if (mem_layout == SRMemLayoutNested)
        throw SRRuntimeException("a draft has no nested layout: give contiguous or Fortran contiguous");
    TensorDraft draft;
    draft.state_ = std::make_shared<TensorDraft::State>();
    draft.state_->draft = create_draft(impl_->get(), type, dims, mem_layout, "draft");
    return draft;
}

void Client::put_tensor(const std::string& name, TensorDraft& draft) {
    if (draft.data() == nullptr)
        throw SRParameterException("the draft for tensor \"" + name + "\" is empty or published already");
    check_tensor(name, this, {1}, SRMemLayoutContiguous);
    const std::string key = impl_->prefixes.tensor(name, false);
    check(tensorlend_publish(draft.state_->draft.place(), key.c_str(), nullptr), "tensor \"" + key + "\"");
    draft.state_.reset();
}

TensorLease Client::lease_tensor(const std::string& name) {
    const std::string key = impl_->prefixes.tensor(name, true);
    Impl::Found found = impl_->find_tensor(key);
    known_type(*found.tensor, key);
    if (found.tensor->data == nullptr || !(found.tensor->row_major || is_column_major(*found.tensor)))
        throw SRRuntimeException("tensor \"" + key + "\" is on a device or has gaps between its elements: use get_tensor");
    TensorLease lease;
    const tensorlend_tensor* tensor = found.tensor;
    lease.state_ = std::make_shared<TensorLease::State>();
    lease.state_->dims.assign(tensor->shape, tensor->shape + tensor->ndim);
    lease.state_->layout = tensor->row_major ? SRMemLayoutContiguous : SRMemLayoutFortranContiguous;
    lease.state_->tensor = tensor;
    lease.state_->lease = std::move(found.lease);
    return lease;
}

void* TensorDraft::data() const { return state_ ? tensorlend_draft_data(state_->draft.get()) : nullptr; }
size_t TensorDraft::bytes() const { return state_ ? size_t(tensorlend_draft_bytes(state_->draft.get())) : 0; }
const void* TensorLease::data() const { return state_ ? state_->tensor->data : nullptr; }
SRTensorType TensorLease::type() const { return state_ ? type_of(state_->tensor->dtype) : SRTensorTypeInvalid; }
SRMemoryLayout TensorLease::layout() const { return state_ ? state_->layout : SRMemLayoutInvalid; }

const std::vector<size_t>& TensorLease::dims() const {
    static const std::vector<size_t> none;
    return state_ ? state_->dims : none;
}

} // namespace SmartRedis
