// Datasets: tensors and metadata fields under one name.
#ifndef SMARTREDIS_DATASET_H
#define SMARTREDIS_DATASET_H
#ifdef __cplusplus
#include "sr_enums.h"
#include "srexception.h"
#include "srobject.h"
#include <iostream>
#include <memory>
#include <stdlib.h>
#include <string>
#include <utility>
#include <vector>

namespace SmartRedis {

/// A dataset in this process's private memory. Client::put_dataset and Client::get_dataset copy it. Memory that a call
/// returns by a pointer belongs to the dataset, and is valid as long as the dataset or the one that it was moved to lives.
class DataSet : public SRObject {
public:
    DataSet(const std::string& name);
    DataSet(const DataSet& dataset);
    DataSet& operator=(const DataSet& dataset);
    DataSet(DataSet&& dataset);
    DataSet& operator=(DataSet&& dataset);
    virtual ~DataSet();

    /// Copies a tensor in. RuntimeException if the dataset has a tensor of this name.
    void add_tensor(const std::string& name, const void* data, const std::vector<size_t>& dims, const SRTensorType type,
                    const SRMemoryLayout mem_layout);
    /// Appends a number to a field; creates the field if it does not exist.
    void add_meta_scalar(const std::string& name, const void* data, const SRMetaDataType type);
    void add_meta_string(const std::string& name, const std::string& data);
    void get_tensor(const std::string& name, void*& data, std::vector<size_t>& dims, SRTensorType& type,
                    const SRMemoryLayout mem_layout) const;
    void get_tensor(const std::string& name, void*& data, size_t*& dims, size_t& n_dims, SRTensorType& type,
                    const SRMemoryLayout mem_layout) const;
    /// Copies a tensor into the caller's memory.
    void unpack_tensor(const std::string& name, void* data, const std::vector<size_t>& dims, const SRTensorType type,
                       const SRMemoryLayout mem_layout);
    void get_meta_scalars(const std::string& name, void*& data, size_t& length, SRMetaDataType& type) const;
    std::vector<std::string> get_meta_strings(const std::string& name) const;
    void get_meta_strings(const std::string& name, char**& data, size_t& n_strings, size_t*& lengths) const;
    bool has_field(const std::string& field_name) const;
    void clear_field(const std::string& field_name);
    std::string get_name() const;
    void set_name(std::string name);
    std::vector<std::string> get_tensor_names() const;
    void get_tensor_names(char**& data, size_t& n_strings, size_t*& lengths) const;
    SRTensorType get_tensor_type(const std::string& name) const;
    const std::vector<size_t> get_tensor_dims(const std::string& name) const;
    std::vector<std::string> get_metadata_field_names() const;
    void get_metadata_field_names(char**& data, size_t& n_strings, size_t*& lengths) const;
    SRMetaDataType get_metadata_field_type(const std::string& name) const;
    std::string to_string() const;

private:
    friend class Client;
    friend struct DatasetCalls;
    struct Content;
    /// ParameterException if the dataset was moved to another variable.
    Content& content() const;
    std::unique_ptr<Content> content_;
};

inline std::ostream& operator<<(std::ostream& stream, const DataSet& dataset) { return stream << dataset.to_string(); }

} // namespace SmartRedis
#endif
#endif
