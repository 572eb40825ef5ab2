// The client: tensors, datasets, aggregation lists and models of one tensorlend daemon.
#ifndef SMARTREDIS_CLIENT_H
#define SMARTREDIS_CLIENT_H
#ifdef __cplusplus
#include "configoptions.h"
#include "dataset.h"
#include "logger.h"
#include "sr_enums.h"
#include "srexception.h"
#include "srobject.h"
#include "tensorlend_smartredis.h"
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

namespace SmartRedis {

typedef std::unordered_map<std::string, std::string> parsed_reply_map;
typedef std::unordered_map<std::string, parsed_reply_map> parsed_reply_nested_map;

/// The calls of SmartRedis's class of this name that classes derived from Client make.
class RedisServer {
public:
    virtual ~RedisServer() = default;
    /// Whether the value at a full key, such as prefix.{name}.meta, is a dataset with this metadata field.
    /// Each dataset has the field _DATASET_ACK_FIELD.
    virtual bool hash_field_exists(const std::string& key, const std::string& field) = 0;
};

/// A client of a tensorlend daemon with the calls of SmartRedis 0.6.1. Every call reports failures as an Exception.
/// Several threads may use a client at once, except set_data_source and the use_*_prefix calls.
class Client : public SRObject {
    using Names = std::vector<std::string>;

public:
    Client(const char* logger_name);
    Client(const std::string& logger_name = "default") : Client(logger_name.c_str()) {}
    /// The client copies the options.
    Client(ConfigOptions* cfgopts, const std::string& logger_name = "default");
    /// Ignores SR_DB_TYPE; only get_db_cluster_info depends on cluster.
    Client(bool cluster, const std::string& logger_name = "default");
    Client(const Client& client) = delete;
    Client(Client&& client);
    Client& operator=(const Client& client) = delete;
    Client& operator=(Client&& client);
    virtual ~Client();

    /// Readers see all of a dataset or none of it.
    void put_dataset(DataSet& dataset);
    DataSet get_dataset(const std::string& name);
    void rename_dataset(const std::string& old_name, const std::string& new_name);
    void copy_dataset(const std::string& src_name, const std::string& dest_name);
    void delete_dataset(const std::string& name);

    /// Copies a tensor to the daemon's memory. A column-major tensor stays column-major there.
    void put_tensor(const std::string& name, const void* data, const std::vector<size_t>& dims, const SRTensorType type,
                    const SRMemoryLayout mem_layout);
    /// Returns a copy, which belongs to the client until the client ends: use unpack_tensor for large tensors.
    void get_tensor(const std::string& name, void*& data, std::vector<size_t>& dims, SRTensorType& type,
                    const SRMemoryLayout mem_layout);
    void get_tensor(const std::string& name, void*& data, size_t*& dims, size_t& n_dims, SRTensorType& type,
                    const SRMemoryLayout mem_layout);
    /// Copies a tensor into the caller's memory, whose type and size must fit.
    void unpack_tensor(const std::string& name, void* data, const std::vector<size_t>& dims, const SRTensorType type,
                       const SRMemoryLayout mem_layout);
    void rename_tensor(const std::string& old_name, const std::string& new_name);
    void delete_tensor(const std::string& name);
    void copy_tensor(const std::string& src_name, const std::string& dest_name);

    /// Not in SmartRedis: a tensor in shared memory to write in place. The layout is contiguous or Fortran contiguous.
    TensorDraft draft_tensor(const std::vector<size_t>& dims, const SRTensorType type, const SRMemoryLayout mem_layout);
    /// Publishes a draft, without a copy. The draft is empty afterwards.
    void put_tensor(const std::string& name, TensorDraft& draft);
    /// Not in SmartRedis: the present tensor of a name, to read in place.
    TensorLease lease_tensor(const std::string& name);

    /// Models run as ONNX files, by a running tensorlend-runner. Other backends are refused.
    void set_model_from_file(const std::string& name, const std::string& model_file, const std::string& backend,
                             const std::string& device, int batch_size = 0, int min_batch_size = 0, int min_batch_timeout = 0,
                             const std::string& tag = "", const Names& inputs = Names(), const Names& outputs = Names());
    void set_model_from_file_multigpu(const std::string& name, const std::string& model_file, const std::string& backend,
                                      int first_gpu, int num_gpus, int batch_size = 0, int min_batch_size = 0,
                                      int min_batch_timeout = 0, const std::string& tag = "", const Names& inputs = Names(),
                                      const Names& outputs = Names());
    void set_model(const std::string& name, const std::string_view& model, const std::string& backend, const std::string& device,
                   int batch_size = 0, int min_batch_size = 0, int min_batch_timeout = 0, const std::string& tag = "",
                   const Names& inputs = Names(), const Names& outputs = Names());
    void set_model_multigpu(const std::string& name, const std::string_view& model, const std::string& backend, int first_gpu,
                            int num_gpus, int batch_size = 0, int min_batch_size = 0, int min_batch_timeout = 0,
                            const std::string& tag = "", const Names& inputs = Names(), const Names& outputs = Names());
    /// Returns a copy of the model's bytes, which belongs to the client.
    std::string_view get_model(const std::string& name);
    void run_model(const std::string& name, const Names inputs, const Names outputs);
    void run_model_multigpu(const std::string& name, const Names inputs, const Names outputs, int offset, int first_gpu, int num_gpus);
    void delete_model(const std::string& name);
    void delete_model_multigpu(const std::string& name, int first_gpu, int num_gpus);

    /// Scripts are refused: export the function to ONNX and call set_model.
    void set_script_from_file(const std::string& name, const std::string& device, const std::string& script_file);
    void set_script_from_file_multigpu(const std::string& name, const std::string& script_file, int first_gpu, int num_gpus);
    void set_script(const std::string& name, const std::string& device, const std::string_view& script);
    void set_script_multigpu(const std::string& name, const std::string_view& script, int first_gpu, int num_gpus);
    std::string_view get_script(const std::string& name);
    void run_script(const std::string& name, const std::string& function, const Names inputs, const Names outputs);
    void run_script_multigpu(const std::string& name, const std::string& function, const Names inputs, const Names outputs,
                             int offset, int first_gpu, int num_gpus);
    void delete_script(const std::string& name);
    void delete_script_multigpu(const std::string& name, int first_gpu, int num_gpus);

    /// The key of key_exists and poll_key includes its prefix. A dataset has the key {name}.meta.
    bool key_exists(const std::string& key);
    bool model_exists(const std::string& name);
    bool tensor_exists(const std::string& name);
    bool dataset_exists(const std::string& name);
    /// Each waits num_tries times poll_frequency_ms at most, and returns whether the value exists.
    bool poll_key(const std::string& key, int poll_frequency_ms, int num_tries);
    bool poll_tensor(const std::string& name, int poll_frequency_ms, int num_tries);
    bool poll_dataset(const std::string& name, int poll_frequency_ms, int num_tries);
    bool poll_model(const std::string& name, int poll_frequency_ms, int num_tries);

    /// Selects the prefix of SSKEYIN under which this client reads.
    void set_data_source(std::string source_id);
    void use_tensor_ensemble_prefix(bool use_prefix);
    void use_dataset_ensemble_prefix(bool use_prefix);
    void use_model_ensemble_prefix(bool use_prefix);
    void use_list_ensemble_prefix(bool use_prefix);

    parsed_reply_nested_map get_db_node_info(const std::string address);
    parsed_reply_map get_db_cluster_info(const std::string address);
    parsed_reply_map get_ai_info(const std::string& address, const std::string& key, bool reset_stat);
    /// Deletes everything in the daemon's namespace.
    void flush_db(const std::string address);
    std::unordered_map<std::string, std::string> config_get(const std::string expression, const std::string address);
    void config_set(const std::string config_param, const std::string value, const std::string address);
    /// Only logs a warning: values are in memory.
    void save(const std::string address);

    /// A list holds the keys of datasets.
    void append_to_list(const std::string& list_name, const DataSet& dataset);
    void delete_list(const std::string& list_name);
    void copy_list(const std::string& src_name, const std::string& dest_name);
    void rename_list(const std::string& src_name, const std::string& dest_name);
    int get_list_length(const std::string& list_name);
    bool poll_list_length(const std::string& name, int list_length, int poll_frequency_ms, int num_tries);
    bool poll_list_length_gte(const std::string& name, int list_length, int poll_frequency_ms, int num_tries);
    bool poll_list_length_lte(const std::string& name, int list_length, int poll_frequency_ms, int num_tries);
    std::vector<DataSet> get_datasets_from_list(const std::string& list_name);
    /// Both indices are included; -1 is the last dataset.
    std::vector<DataSet> get_dataset_list_range(const std::string& list_name, int start_index, int end_index);

    /// Has no effect: models are passed whole, in shared memory.
    void set_model_chunk_size(int chunk_size);
    std::string to_string() const;

protected:
    /// Belongs to the client.
    RedisServer* _redis_server = nullptr;
    inline static const std::string _DATASET_ACK_FIELD = ".COMPLETE";

private:
    Client(ConfigOptions* cfgopts, const std::string& logger_name, const bool* cluster);
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

inline std::ostream& operator<<(std::ostream& stream, const Client& client) { return stream << client.to_string(); }

} // namespace SmartRedis
#endif
#endif
