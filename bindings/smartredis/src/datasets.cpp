// The client's calls on datasets and aggregation lists. A list holds keys, so that readers get each dataset's latest value.
#include "connection.h"
#include "content.h"
#include <cstring>

namespace SmartRedis {

namespace {
/// Maximum number of leases on items at a time, of the 4096 leases of a client.
constexpr uint64_t ITEMS_AT_ONCE = 1024;

void check_names(const std::string& one, const std::string& other) {
    if (one.empty() || other.empty())
        throw SRParameterException("the name of a list cannot be empty");
}

/// The dataset's name in its key, prefix.{name}.
std::string name_in(const std::string& key) {
    const size_t open = key.find('{'), close = key.rfind('}');
    if (open == std::string::npos || close == std::string::npos || close <= open + 1)
        throw SRInternalException("the list has an item \"" + key + "\", which is no key of a dataset");
    return key.substr(open + 1, close - open - 1);
}

Draft key_draft(const tensorlend_client* session, const std::string& key) {
    Draft draft = create_draft(session, SRTensorTypeUint8, {key.size()}, SRMemLayoutContiguous, "list");
    std::memcpy(tensorlend_draft_data(draft.get()), key.data(), key.size());
    return draft;
}
} // namespace

void Client::put_dataset(DataSet& dataset) {
    const std::string key = value_name(impl_->prefixes.dataset(dataset.get_name(), false));
    Draft draft = DatasetCalls::to_draft(dataset, impl_->get());
    check(tensorlend_publish(draft.place(), key.c_str(), nullptr), "dataset \"" + dataset.get_name() + "\"");
}

DataSet Client::Impl::dataset(const std::string& name, const std::string& key) const {
    Lease lease;
    const tensorlend_status status = tensorlend_get_dataset(get(), value_name(key).c_str(), lease.place());
    if (status == TENSORLEND_NOT_FOUND)
        throw SRKeyException("there is no dataset \"" + name + "\", key \"" + key + "\"");
    check(status, "dataset \"" + name + "\"");
    return DatasetCalls::from_lease(name, lease.get());
}

DataSet Client::get_dataset(const std::string& name) { return impl_->dataset(name, impl_->prefixes.dataset(name, true)); }

void Client::rename_dataset(const std::string& old_name, const std::string& new_name) {
    const std::string from = value_name(impl_->prefixes.dataset(old_name, true));
    if (!impl_->exists(from))
        throw SRKeyException("there is no dataset \"" + old_name + "\"");
    impl_->rename(from, value_name(impl_->prefixes.dataset(new_name, false)));
}

void Client::copy_dataset(const std::string& src_name, const std::string& dest_name) {
    const std::string from = value_name(impl_->prefixes.dataset(src_name, true));
    const std::string to = value_name(impl_->prefixes.dataset(dest_name, false));
    const tensorlend_status status = tensorlend_copy(impl_->get(), from.c_str(), to.c_str(), nullptr);
    if (status == TENSORLEND_NOT_FOUND)
        throw SRKeyException("there is no dataset \"" + src_name + "\"");
    check(status, "dataset \"" + src_name + "\"");
}

void Client::delete_dataset(const std::string& name) {
    bool existed = false;
    const std::string key = value_name(impl_->prefixes.dataset(name, true));
    check(tensorlend_delete(impl_->get(), key.c_str(), &existed), "dataset \"" + name + "\"");
    if (!existed)
        throw SRRuntimeException("there is no dataset \"" + name + "\"");
}

bool Client::dataset_exists(const std::string& name) {
    return impl_->exists(value_name(impl_->prefixes.dataset(name, true)));
}

bool Client::poll_dataset(const std::string& name, int poll_frequency_ms, int num_tries) {
    const std::string key = value_name(impl_->prefixes.dataset(name, true));
    return impl_->poll(key, poll_frequency_ms, num_tries, [&] { return impl_->exists(key); });
}

void Client::append_to_list(const std::string& list_name, const DataSet& dataset) {
    Draft item = key_draft(impl_->get(), impl_->prefixes.dataset(dataset.get_name(), false));
    const std::string list = impl_->prefixes.list(list_name, false);
    check(tensorlend_list_append(impl_->get(), list.c_str(), item.place(), nullptr), "list \"" + list + "\"");
}

void Client::delete_list(const std::string& list_name) {
    const std::string list = impl_->prefixes.list(list_name, true);
    check(tensorlend_list_clear(impl_->get(), list.c_str(), nullptr), "list \"" + list + "\"");
}

void Client::copy_list(const std::string& src_name, const std::string& dest_name) {
    check_names(src_name, dest_name);
    if (src_name == dest_name)
        return;
    const std::string from = impl_->prefixes.list(src_name, true), to = impl_->prefixes.list(dest_name, false);
    const std::vector<std::string> keys = impl_->items(from, 0, impl_->length(from));
    if (keys.empty())
        throw SRRuntimeException("there is no list \"" + src_name + "\"");
    check(tensorlend_list_clear(impl_->get(), to.c_str(), nullptr), "list \"" + to + "\"");
    for (const std::string& key : keys) {
        Draft item = key_draft(impl_->get(), key);
        check(tensorlend_list_append(impl_->get(), to.c_str(), item.place(), nullptr), "list \"" + to + "\"");
    }
}

void Client::rename_list(const std::string& src_name, const std::string& dest_name) {
    check_names(src_name, dest_name);
    const std::string from = impl_->prefixes.list(src_name, true), to = impl_->prefixes.list(dest_name, false);
    if (from != to && src_name != dest_name)
        check(tensorlend_list_rename(impl_->get(), from.c_str(), to.c_str()), "list \"" + from + "\"");
}

uint64_t Client::Impl::length(const std::string& list) const {
    uint64_t length = 0;
    check(tensorlend_list_length(get(), list.c_str(), &length), "list \"" + list + "\"");
    return length;
}

int Client::get_list_length(const std::string& list_name) { return int(impl_->length(impl_->prefixes.list(list_name, true))); }

bool Client::Impl::poll_length(const std::string& name, int length, int milliseconds, int tries, tensorlend_length how) const {
    if (length < 0)
        throw SRParameterException("list_length is " + std::to_string(length) + "; it must be at least 0");
    if (tries <= 0)
        return false;
    const std::string list = prefixes.list(name, true);
    const int64_t longest = INT64_MAX / 1'000'000;
    const int64_t nanoseconds = std::min(int64_t(std::max(milliseconds, 0)) * tries, longest) * 1'000'000;
    const tensorlend_status status = tensorlend_list_wait_length(get(), list.c_str(), how, uint64_t(length), nanoseconds, nullptr);
    if (status == TENSORLEND_TIMEOUT)
        return false;
    check(status, "list \"" + list + "\"");
    return true;
}

bool Client::poll_list_length(const std::string& name, int list_length, int poll_frequency_ms, int num_tries) {
    return impl_->poll_length(name, list_length, poll_frequency_ms, num_tries, TENSORLEND_LENGTH_EXACTLY);
}

bool Client::poll_list_length_gte(const std::string& name, int list_length, int poll_frequency_ms, int num_tries) {
    return impl_->poll_length(name, list_length, poll_frequency_ms, num_tries, TENSORLEND_LENGTH_AT_LEAST);
}

bool Client::poll_list_length_lte(const std::string& name, int list_length, int poll_frequency_ms, int num_tries) {
    return impl_->poll_length(name, list_length, poll_frequency_ms, num_tries, TENSORLEND_LENGTH_AT_MOST);
}

std::vector<std::string> Client::Impl::items(const std::string& list, uint64_t first, uint64_t end) const {
    std::vector<std::string> keys;
    for (uint64_t at = first; at < end; at += ITEMS_AT_ONCE) {
        Leases leases;
        const tensorlend_status status =
            tensorlend_list_get_range(get(), list.c_str(), at, std::min(at + ITEMS_AT_ONCE, end), leases.place());
        if (status == TENSORLEND_NOT_FOUND)
            return keys; // The list was cleared after its length was read.
        check(status, "list \"" + list + "\"");
        for (uint64_t item = 0; item < tensorlend_leases_count(leases.get()); item++) {
            const tensorlend_lease* lease = tensorlend_leases_at(leases.get(), item);
            const tensorlend_tensor* tensor = tensorlend_lease_tensor(lease);
            if (tensor == nullptr || tensor->dtype != TENSORLEND_U8)
                throw SRRuntimeException("the list \"" + list + "\" holds values that were not appended as datasets");
            std::string key(size_t(tensor->nbytes), '\0');
            check(tensorlend_lease_copy(lease, nullptr, key.data(), key.size()), "list \"" + list + "\"");
            keys.push_back(std::move(key));
        }
    }
    return keys;
}

std::vector<DataSet> Client::get_datasets_from_list(const std::string& list_name) {
    return get_dataset_list_range(list_name, 0, -1);
}

std::vector<DataSet> Client::get_dataset_list_range(const std::string& list_name, int start_index, int end_index) {
    check_names(list_name, list_name);
    const std::string list = impl_->prefixes.list(list_name, true);
    const int64_t length = int64_t(impl_->length(list));
    const int64_t first = std::max<int64_t>(start_index < 0 ? start_index + length : start_index, 0);
    const int64_t last = std::min<int64_t>(end_index < 0 ? end_index + length : end_index, length - 1);
    std::vector<DataSet> datasets;
    if (first > last)
        return datasets;
    for (const std::string& key : impl_->items(list, uint64_t(first), uint64_t(last) + 1)) {
        const std::string name = name_in(key);
        try {
            datasets.push_back(impl_->dataset(name, key));
        } catch (const KeyException&) {
            log_warning(LLInfo, "the dataset " + key + " is in a list, but was deleted");
            datasets.emplace_back(name);
        }
    }
    return datasets;
}

} // namespace SmartRedis
