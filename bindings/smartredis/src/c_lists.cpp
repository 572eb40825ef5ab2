// Aggregation lists from C.
#include "c_calls.h"
#include "c_client.h"
#include <cstdlib>

using namespace SmartRedis;

/// Moves datasets to an array of the caller.
static void give(std::vector<DataSet>& datasets, void** array) {
    for (size_t at = 0; at < datasets.size(); at++)
        array[at] = made<DataSet>(std::move(datasets[at]));
}

/// Moves datasets to a new array. malloc made it, because C programs free it.
static void give(std::vector<DataSet> datasets, void*** array, size_t* count) {
    *array = nullptr;
    *count = 0;
    if (datasets.empty())
        return;
    void** made = static_cast<void**>(std::malloc(datasets.size() * sizeof(void*)));
    if (made == nullptr)
        throw std::bad_alloc();
    give(datasets, made);
    *array = made;
    *count = datasets.size();
}

extern "C" {

SRError append_to_list(void* c_client, const char* list_name, const size_t list_name_length, const void* dataset) {
    return guarded([&] {
        require(dataset);
        client_at(c_client).append_to_list(text(list_name, list_name_length), *static_cast<const DataSet*>(dataset));
    });
}

SRError get_list_length(void* c_client, const char* list_name, const size_t list_name_length, int* result_length) {
    return result_of(c_client, &Client::get_list_length, result_length, Text{list_name, list_name_length});
}

SRError get_datasets_from_list(void* c_client, const char* list_name, const size_t list_name_length, void*** datasets,
                               size_t* num_datasets) {
    return guarded([&] {
        require(datasets, num_datasets);
        give(client_at(c_client).get_datasets_from_list(text(list_name, list_name_length)), datasets, num_datasets);
    });
}

SRError get_dataset_list_range(void* c_client, const char* list_name, const size_t list_name_length, const int start_index,
                               const int end_index, void*** datasets, size_t* num_datasets) {
    return guarded([&] {
        require(datasets, num_datasets);
        give(client_at(c_client).get_dataset_list_range(text(list_name, list_name_length), start_index, end_index), datasets,
             num_datasets);
    });
}

SRError _get_dataset_list_range_allocated(void* c_client, const char* list_name, const size_t list_name_length,
                                          const int start_index, const int end_index, void** datasets) {
    return guarded([&] {
        require(datasets);
        std::vector<DataSet> found =
            client_at(c_client).get_dataset_list_range(text(list_name, list_name_length), start_index, end_index);
        const int64_t wanted = int64_t(end_index) - start_index + 1;
        if (int64_t(found.size()) != wanted)
            throw SRInternalException("the list has " + std::to_string(found.size()) + " datasets in this range, and not " +
                                      std::to_string(wanted));
        give(found, datasets);
    });
}

} // extern "C"
