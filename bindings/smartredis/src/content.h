// The contents of a dataset, and their form as a value of tensorlend.
#ifndef SMARTREDIS_CONTENT_H
#define SMARTREDIS_CONTENT_H
#include "dataset.h"
#include "fields.h"
#include "layout.h"

namespace SmartRedis {

struct DataSet::Content {
    std::string name;
    /// In the order in which they were added.
    std::vector<std::pair<std::string, Tensor>> tensors;
    Fields fields;
    /// Memory that calls returned. A copy of the dataset starts without any.
    mutable Arena arena;

    explicit Content(std::string name) : name(std::move(name)) {}
    Content(const Content& other) : name(other.name), tensors(other.tensors), fields(other.fields) {}

    const Tensor* find(const std::string& tensor) const;
    /// KeyException if there is no such tensor.
    const Tensor& tensor(const std::string& tensor) const;
};

/// The steps of a client on a dataset's content.
struct DatasetCalls {
    /// Copies a dataset to shared memory. RuntimeException if it is empty.
    static Draft to_draft(const DataSet& dataset, const tensorlend_client* session);
    /// Copies a leased dataset.
    static DataSet from_lease(const std::string& name, const tensorlend_lease* lease);
};

} // namespace SmartRedis
#endif
