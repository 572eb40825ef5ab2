// Values at a full key: tensors, datasets, tensors of datasets, lists.
#include "connection.h"
#include "content.h"
#include <cstring>

namespace SmartRedis {

namespace {
/// Splits prefix.{dataset}.tensor into the dataset's key and the tensor's name.
bool member_of(const std::string& key, std::string& dataset, std::string& tensor) {
    const size_t brace = key.rfind("}.");
    if (brace == std::string::npos || key.find('{') > brace || brace + 2 == key.size())
        return false;
    dataset = key.substr(0, brace + 1);
    tensor = key.substr(brace + 2);
    return true;
}
} // namespace

bool Client::Impl::exists(const std::string& name) const {
    bool exists = false;
    check(tensorlend_exists(get(), name.c_str(), &exists), "\"" + name + "\"");
    return exists;
}

bool Client::Impl::key_exists(const std::string& key) const {
    if (key.empty() || key.find('\0') != std::string::npos)
        return false;
    if (exists(key) || length(key) > 0)
        return true;
    std::string dataset, tensor;
    if (!member_of(key, dataset, tensor))
        return false;
    Lease lease;
    const tensorlend_status status = tensorlend_get_dataset(get(), value_name(dataset).c_str(), lease.place());
    return status == TENSORLEND_OK && tensorlend_lease_find(lease.get(), tensor.c_str()) != nullptr;
}

bool Client::Impl::hash_field_exists(const std::string& key, const std::string& field) {
    Lease lease;
    const tensorlend_status status = tensorlend_get_dataset(get(), key.c_str(), lease.place());
    if (status == TENSORLEND_NOT_FOUND || status == TENSORLEND_KIND)
        return false;
    check(status, "\"" + key + "\"");
    return field == _DATASET_ACK_FIELD || DatasetCalls::from_lease(key, lease.get()).has_field(field);
}

bool Client::Impl::poll(const std::string& name, int milliseconds, int tries, const std::function<bool()>& is_there) const {
    const std::chrono::milliseconds interval(std::max(milliseconds, 0));
    for (int at = 0; at < tries; at++) {
        if (is_there())
            return true;
        const auto deadline = std::chrono::steady_clock::now() + interval;
        Lease lease;
        const int64_t nanoseconds = std::chrono::nanoseconds(interval).count();
        const tensorlend_status status = tensorlend_wait_for(get(), name.c_str(), nanoseconds, lease.place());
        if (status == TENSORLEND_TIMEOUT)
            continue;
        if (status != TENSORLEND_OK && status != TENSORLEND_KIND)
            raise(status, "\"" + name + "\"");
        if (is_there())
            return true;
        // The name has another kind of value: a wait for the name would return at once.
        std::this_thread::sleep_until(deadline);
    }
    return false;
}

Client::Impl::Found Client::Impl::find_tensor(const std::string& key) const {
    Found found{Lease(), nullptr, nullptr};
    const tensorlend_status status = tensorlend_get(get(), key.c_str(), found.lease.place());
    if (status == TENSORLEND_OK) {
        found.tensor = tensorlend_lease_tensor(found.lease.get());
        return found;
    }
    std::string dataset, tensor;
    if (status != TENSORLEND_NOT_FOUND || !member_of(key, dataset, tensor))
        raise(status, "tensor \"" + key + "\"");
    check(tensorlend_get_dataset(get(), value_name(dataset).c_str(), found.lease.place()), "tensor \"" + key + "\"");
    found.tensor = tensorlend_lease_find(found.lease.get(), tensor.c_str());
    if (found.tensor == nullptr)
        throw SRRuntimeException("dataset \"" + dataset + "\" has no tensor \"" + tensor + "\"");
    found.member = found.tensor->name;
    return found;
}

void Client::Impl::rename(const std::string& from, const std::string& to) const {
    // A rename to the same name must still raise an error if the value does not exist.
    if (from != to || !exists(from))
        check(tensorlend_rename(get(), from.c_str(), to.c_str()), "\"" + from + "\"");
}

bool Client::key_exists(const std::string& key) { return impl_->key_exists(key); }

bool Client::poll_key(const std::string& key, int poll_frequency_ms, int num_tries) {
    return impl_->poll(key, poll_frequency_ms, num_tries, [&] { return impl_->key_exists(key); });
}

void Client::set_data_source(std::string source_id) { impl_->prefixes.set_source(source_id); }
void Client::use_tensor_ensemble_prefix(bool use_prefix) { impl_->prefixes.tensors = use_prefix; }
void Client::use_dataset_ensemble_prefix(bool use_prefix) { impl_->prefixes.datasets = use_prefix; }
void Client::use_model_ensemble_prefix(bool use_prefix) { impl_->prefixes.models = use_prefix; }
void Client::use_list_ensemble_prefix(bool use_prefix) { impl_->prefixes.lists = use_prefix; }

} // namespace SmartRedis
