// Datasets from C.
#include "c_dataset.h"
#include "c_calls.h"

using namespace SmartRedis;

extern "C" {

SRError CDataSet(const char* name, const size_t name_length, void** new_dataset) {
    return created<DataSet>(new_dataset, Text{name, name_length});
}

SRError DeallocateDataSet(void** dataset) { return ended<DataSet>(dataset); }

SRError add_tensor(void* dataset, const char* name, const size_t name_length, void* data, const size_t* dims, const size_t n_dims,
                   const SRTensorType type, const SRMemoryLayout mem_layout) {
    return guarded([&] {
        // NULL for the data is a RuntimeException, as in SmartRedis.
        dataset_at(dataset).add_tensor(text(name, name_length), data, sizes(dims, n_dims), type, mem_layout);
    });
}

SRError add_meta_scalar(void* dataset, const char* name, const size_t name_length, const void* data, const SRMetaDataType type) {
    return guarded([&] {
        require(data);
        dataset_at(dataset).add_meta_scalar(text(name, name_length), data, type);
    });
}

SRError add_meta_string(void* dataset, const char* name, const size_t name_length, const char* data, const size_t data_length) {
    return called(dataset, &DataSet::add_meta_string, Text{name, name_length}, Text{data, data_length});
}

SRError get_dataset_tensor(void* dataset, const char* name, const size_t name_length, void** data, size_t** dims, size_t* n_dims,
                           SRTensorType* type, const SRMemoryLayout mem_layout) {
    return guarded([&] {
        require(data, dims, n_dims, type);
        dataset_at(dataset).get_tensor(text(name, name_length), *data, *dims, *n_dims, *type, mem_layout);
    });
}

SRError unpack_dataset_tensor(void* dataset, const char* name, const size_t name_length, void* data, const size_t* dims,
                              const size_t n_dims, const SRTensorType type, const SRMemoryLayout mem_layout) {
    return guarded([&] {
        require(data);
        dataset_at(dataset).unpack_tensor(text(name, name_length), data, sizes(dims, n_dims), type, mem_layout);
    });
}

SRError get_meta_scalars(void* dataset, const char* name, const size_t name_length, size_t* length, SRMetaDataType* type,
                         void** scalar_data) {
    return guarded([&] {
        require(length, type, scalar_data);
        dataset_at(dataset).get_meta_scalars(text(name, name_length), *scalar_data, *length, *type);
    });
}

SRError get_meta_strings(void* dataset, const char* name, const size_t name_length, char*** data, size_t* n_strings,
                         size_t** lengths) {
    return guarded([&] {
        require(data, n_strings, lengths);
        dataset_at(dataset).get_meta_strings(text(name, name_length), *data, *n_strings, *lengths);
    });
}

SRError get_tensor_names(void* dataset, char*** data, size_t* n_strings, size_t** lengths) {
    return guarded([&] {
        require(data, n_strings, lengths);
        dataset_at(dataset).get_tensor_names(*data, *n_strings, *lengths);
    });
}

SRError get_tensor_type(void* dataset, const char* name, size_t name_len, SRTensorType* ttype) {
    return result_of(dataset, &DataSet::get_tensor_type, ttype, Text{name, name_len});
}

SRError get_tensor_dims(void* dataset, const char* name, size_t name_len, size_t** dims, size_t* ndims) {
    return guarded([&] {
        require(dims, ndims);
        const std::vector<size_t> found = dataset_at(dataset).get_tensor_dims(text(name, name_len));
        const size_t room = std::exchange(*ndims, found.size());
        if (room < found.size())
            throw SRBadAllocException("the tensor has " + std::to_string(found.size()) + " dimensions, and there is memory for " +
                                      std::to_string(room));
        require(*dims);
        std::copy(found.begin(), found.end(), *dims);
    });
}

SRError get_metadata_field_names(void* dataset, char*** data, size_t* n_strings, size_t** lengths) {
    return guarded([&] {
        require(data, n_strings, lengths);
        dataset_at(dataset).get_metadata_field_names(*data, *n_strings, *lengths);
    });
}

SRError get_metadata_field_type(void* dataset, const char* name, size_t name_len, SRMetaDataType* mdtype) {
    return result_of(dataset, &DataSet::get_metadata_field_type, mdtype, Text{name, name_len});
}

const char* dataset_to_string(void* dataset) {
    thread_local std::string kept;
    return described(kept, [&] { return dataset_at(dataset).to_string(); });
}

} // extern "C"
