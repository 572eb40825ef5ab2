// The client from C: construction, tensors, datasets, keys, prefixes, and calls that differ in their names only.
#include "c_client.h"
#include "c_calls.h"

using namespace SmartRedis;

/// Calls a method of the client with one name.
template <typename Call> static SRError with_name(void* c_client, const char* name, size_t length, Call call) {
    return guarded([&] {
        Client& client = client_at(c_client);
        call(client, text(name, length));
    });
}

extern "C" {

// Each macro defines a call that passes its arguments on to the method of its name.
#define WITH_NAME(call)                                                                                                            \
    SRError call(void* c_client, const char* name, const size_t name_length) {                                                     \
        return called(c_client, &Client::call, Text{name, name_length});                                                           \
    }
WITH_NAME(delete_tensor)
WITH_NAME(delete_dataset)
WITH_NAME(delete_list)
WITH_NAME(delete_model)
WITH_NAME(delete_script)
WITH_NAME(set_data_source)

#define WITH_TWO_NAMES(call)                                                                                                       \
    SRError call(void* c_client, const char* name, const size_t name_length, const char* new_name, const size_t new_name_length) { \
        return called(c_client, &Client::call, Text{name, name_length}, Text{new_name, new_name_length});                          \
    }
WITH_TWO_NAMES(rename_tensor)
WITH_TWO_NAMES(rename_dataset)
WITH_TWO_NAMES(rename_list)
WITH_TWO_NAMES(copy_tensor)
WITH_TWO_NAMES(copy_dataset)
WITH_TWO_NAMES(copy_list)

#define EXISTS(call)                                                                                                               \
    SRError call(void* c_client, const char* name, const size_t name_length, bool* exists) {                                       \
        return result_of(c_client, &Client::call, exists, Text{name, name_length});                                                \
    }
EXISTS(key_exists)
EXISTS(tensor_exists)
EXISTS(dataset_exists)
EXISTS(model_exists)

#define POLL(call)                                                                                                                 \
    SRError call(void* c_client, const char* name, const size_t name_length, const int poll_frequency_ms, const int num_tries,     \
                 bool* exists) {                                                                                                   \
        return result_of(c_client, &Client::call, exists, Text{name, name_length}, poll_frequency_ms, num_tries);                  \
    }
POLL(poll_key)
POLL(poll_tensor)
POLL(poll_dataset)
POLL(poll_model)

#define POLL_LENGTH(call)                                                                                                          \
    SRError call(void* c_client, const char* name, const size_t name_length, int list_length, int poll_frequency_ms,               \
                 int num_tries, bool* poll_result) {                                                                               \
        return result_of(c_client, &Client::call, poll_result, Text{name, name_length}, list_length, poll_frequency_ms, num_tries); \
    }
POLL_LENGTH(poll_list_length)
POLL_LENGTH(poll_list_length_gte)
POLL_LENGTH(poll_list_length_lte)

#define SWITCH(call)                                                                                                               \
    SRError call(void* c_client, bool use_prefix) { return called(c_client, &Client::call, use_prefix); }
SWITCH(use_tensor_ensemble_prefix)
SWITCH(use_dataset_ensemble_prefix)
SWITCH(use_model_ensemble_prefix)
SWITCH(use_list_ensemble_prefix)

SRError SimpleCreateClient(const char* logger_name, const size_t logger_name_length, void** new_client) {
    return created<Client>(new_client, Text{logger_name, logger_name_length});
}

SRError CreateClient(void* config_options, const char* logger_name, const size_t logger_name_length, void** new_client) {
    return created<Client>(new_client, static_cast<ConfigOptions*>(config_options), Text{logger_name, logger_name_length});
}

SRError SmartRedisCClient(bool cluster, const char* logger_name, const size_t logger_name_length, void** new_client) {
    return created<Client>(new_client, cluster, Text{logger_name, logger_name_length});
}

SRError DeleteCClient(void** c_client) { return ended<Client>(c_client); }

SRError put_dataset(void* c_client, void* dataset) {
    return guarded([&] { client_at(c_client).put_dataset(dataset_at(dataset)); });
}

SRError get_dataset(void* c_client, const char* name, const size_t name_length, void** dataset) {
    return with_name(c_client, name, name_length, [&](Client& client, const std::string& given) {
        require(dataset);
        *dataset = made<DataSet>(client.get_dataset(given));
    });
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
