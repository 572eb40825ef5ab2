// The client from C: construction, tensors, datasets, keys and prefixes.
#include "c_client.h"
#include "c_calls.h"

using namespace SmartRedis;

/// Creates a client. *new_client is NULL if that fails.
template <typename... Given>
static SRError create(const char* logger_name, size_t logger_name_length, void** new_client, Given... given) {
    return guarded([&] {
        require(new_client);
        *new_client = nullptr;
        *new_client = made<Client>(given..., text(logger_name, logger_name_length));
    });
}

/// Calls a method of the client with one name.
template <typename Call> static SRError with_name(void* c_client, const char* name, size_t length, Call call) {
    return guarded([&] {
        Client& client = client_at(c_client);
        call(client, text(name, length));
    });
}

/// Writes what a method of the client with one name returns to *result.
template <typename Result, typename Call>
static SRError result_of(void* c_client, const char* name, size_t length, Result* result, Call call) {
    return with_name(c_client, name, length, [&](Client& client, const std::string& given) {
        require(result);
        *result = call(client, given);
    });
}

/// Calls a method of the client with two names.
static SRError with_names(void* c_client, const char* one, size_t one_length, const char* other, size_t other_length,
                          void (Client::*call)(const std::string&, const std::string&)) {
    return guarded([&] { (client_at(c_client).*call)(text(one, one_length), text(other, other_length)); });
}

static SRError switched(void* c_client, void (Client::*call)(bool), bool value) {
    return guarded([&] { (client_at(c_client).*call)(value); });
}

extern "C" {

SRError SimpleCreateClient(const char* logger_name, const size_t logger_name_length, void** new_client) {
    return create(logger_name, logger_name_length, new_client);
}

SRError CreateClient(void* config_options, const char* logger_name, const size_t logger_name_length, void** new_client) {
    return create(logger_name, logger_name_length, new_client, static_cast<ConfigOptions*>(config_options));
}

SRError SmartRedisCClient(bool cluster, const char* logger_name, const size_t logger_name_length, void** new_client) {
    return create(logger_name, logger_name_length, new_client, cluster);
}

SRError DeleteCClient(void** c_client) { return ended<Client>(c_client); }

SRError put_dataset(void* c_client, void* dataset) {
    return guarded([&] { client_at(c_client).put_dataset(dataset_at(dataset)); });
}

SRError get_dataset(void* c_client, const char* name, const size_t name_length, void** dataset) {
    return result_of(c_client, name, name_length, dataset,
                     [](Client& client, const std::string& given) { return made<DataSet>(client.get_dataset(given)); });
}

SRError rename_dataset(void* c_client, const char* old_name, const size_t old_name_length, const char* new_name,
                       const size_t new_name_length) {
    return with_names(c_client, old_name, old_name_length, new_name, new_name_length, &Client::rename_dataset);
}

SRError copy_dataset(void* c_client, const char* src_name, const size_t src_name_length, const char* dest_name,
                     const size_t dest_name_length) {
    return with_names(c_client, src_name, src_name_length, dest_name, dest_name_length, &Client::copy_dataset);
}

SRError delete_dataset(void* c_client, const char* name, const size_t name_length) {
    return with_name(c_client, name, name_length, [](Client& client, const std::string& given) { client.delete_dataset(given); });
}

SRError put_tensor(void* c_client, const char* name, const size_t name_length, void* data, const size_t* dims, const size_t n_dims,
                   const SRTensorType type, const SRMemoryLayout mem_layout) {
    return with_name(c_client, name, name_length, [&](Client& client, const std::string& given) {
        require(data);
        client.put_tensor(given, data, sizes(dims, n_dims), type, mem_layout);
    });
}

SRError get_tensor(void* c_client, const char* name, const size_t name_length, void** data, size_t** dims, size_t* n_dims,
                   SRTensorType* type, const SRMemoryLayout mem_layout) {
    return with_name(c_client, name, name_length, [&](Client& client, const std::string& given) {
        require(data, dims, n_dims, type);
        client.get_tensor(given, *data, *dims, *n_dims, *type, mem_layout);
    });
}

SRError unpack_tensor(void* c_client, const char* name, const size_t name_length, void* result, const size_t* dims,
                      const size_t n_dims, const SRTensorType type, const SRMemoryLayout mem_layout) {
    return with_name(c_client, name, name_length, [&](Client& client, const std::string& given) {
        require(result);
        client.unpack_tensor(given, result, sizes(dims, n_dims), type, mem_layout);
    });
}

SRError rename_tensor(void* c_client, const char* old_name, const size_t old_name_length, const char* new_name,
                      const size_t new_name_length) {
    return with_names(c_client, old_name, old_name_length, new_name, new_name_length, &Client::rename_tensor);
}

SRError delete_tensor(void* c_client, const char* name, const size_t name_length) {
    return with_name(c_client, name, name_length, [](Client& client, const std::string& given) { client.delete_tensor(given); });
}

SRError copy_tensor(void* c_client, const char* src_name, const size_t src_name_length, const char* dest_name,
                    const size_t dest_name_length) {
    return with_names(c_client, src_name, src_name_length, dest_name, dest_name_length, &Client::copy_tensor);
}

SRError key_exists(void* c_client, const char* key, const size_t key_length, bool* exists) {
    return result_of(c_client, key, key_length, exists, [](Client& client, const std::string& given) { return client.key_exists(given); });
}

SRError tensor_exists(void* c_client, const char* name, const size_t name_length, bool* exists) {
    return result_of(c_client, name, name_length, exists,
                     [](Client& client, const std::string& given) { return client.tensor_exists(given); });
}

SRError model_exists(void* c_client, const char* name, const size_t name_length, bool* exists) {
    return result_of(c_client, name, name_length, exists,
                     [](Client& client, const std::string& given) { return client.model_exists(given); });
}

SRError dataset_exists(void* c_client, const char* name, const size_t name_length, bool* exists) {
    return result_of(c_client, name, name_length, exists,
                     [](Client& client, const std::string& given) { return client.dataset_exists(given); });
}

SRError poll_key(void* c_client, const char* key, const size_t key_length, const int poll_frequency_ms, const int num_tries,
                 bool* exists) {
    return result_of(c_client, key, key_length, exists,
                     [&](Client& client, const std::string& given) { return client.poll_key(given, poll_frequency_ms, num_tries); });
}

SRError poll_model(void* c_client, const char* name, const size_t name_length, const int poll_frequency_ms, const int num_tries,
                   bool* exists) {
    return result_of(c_client, name, name_length, exists,
                     [&](Client& client, const std::string& given) { return client.poll_model(given, poll_frequency_ms, num_tries); });
}

SRError poll_tensor(void* c_client, const char* name, const size_t name_length, const int poll_frequency_ms, const int num_tries,
                    bool* exists) {
    return result_of(c_client, name, name_length, exists,
                     [&](Client& client, const std::string& given) { return client.poll_tensor(given, poll_frequency_ms, num_tries); });
}

SRError poll_dataset(void* c_client, const char* name, const size_t name_length, const int poll_frequency_ms, const int num_tries,
                     bool* exists) {
    return result_of(c_client, name, name_length, exists,
                     [&](Client& client, const std::string& given) { return client.poll_dataset(given, poll_frequency_ms, num_tries); });
}

SRError set_data_source(void* c_client, const char* source_id, const size_t source_id_length) {
    return with_name(c_client, source_id, source_id_length,
                     [](Client& client, const std::string& given) { client.set_data_source(given); });
}

SRError use_tensor_ensemble_prefix(void* c_client, bool use_prefix) {
    return switched(c_client, &Client::use_tensor_ensemble_prefix, use_prefix);
}

SRError use_dataset_ensemble_prefix(void* c_client, bool use_prefix) {
    return switched(c_client, &Client::use_dataset_ensemble_prefix, use_prefix);
}

SRError use_model_ensemble_prefix(void* c_client, bool use_prefix) {
    return switched(c_client, &Client::use_model_ensemble_prefix, use_prefix);
}

SRError use_list_ensemble_prefix(void* c_client, bool use_prefix) {
    return switched(c_client, &Client::use_list_ensemble_prefix, use_prefix);
}

SRError refuse_small_array(const char* name, const size_t name_length) {
    return guarded([&] {
        throw SRRuntimeException("tensor \"" + text(name, name_length) + "\": the array has fewer elements than the dimensions that were given");
    });
}

const char* client_to_string(void* c_client) {
    thread_local std::string kept;
    return described(kept, [&] { return client_at(c_client).to_string(); });
}

SRError draft_tensor(void* c_client, const size_t* dims, const size_t n_dims, SRTensorType type, SRMemoryLayout mem_layout,
                     void** draft, void** data) {
    return guarded([&] {
        require(draft, data);
        *draft = *data = nullptr;
        const TensorDraft created = client_at(c_client).draft_tensor(sizes(dims, n_dims), type, mem_layout);
        *data = created.data();
        *draft = made<TensorDraft>(created);
    });
}

SRError put_draft(void* c_client, const char* name, const size_t name_length, void** draft) {
    return with_name(c_client, name, name_length, [&](Client& client, const std::string& given) {
        require(draft);
        require(*draft);
        client.put_tensor(given, *static_cast<TensorDraft*>(*draft));
        delete static_cast<TensorDraft*>(*draft);
        *draft = nullptr;
    });
}

SRError DeallocateDraft(void** draft) { return ended<TensorDraft>(draft); }

SRError lease_tensor(void* c_client, const char* name, const size_t name_length, void** lease, const void** data,
                     const size_t** dims, size_t* n_dims, SRTensorType* type, SRMemoryLayout* mem_layout) {
    return with_name(c_client, name, name_length, [&](Client& client, const std::string& given) {
        require(lease, data, dims, n_dims, type, mem_layout);
        *lease = nullptr;
        const TensorLease taken = client.lease_tensor(given);
        *data = taken.data();
        *dims = taken.dims().data();
        *n_dims = taken.dims().size();
        *type = taken.type();
        *mem_layout = taken.layout();
        *lease = made<TensorLease>(taken);
    });
}

SRError DeallocateLease(void** lease) { return ended<TensorLease>(lease); }

} // extern "C"
