// A client's connection to its daemon, its prefixes, and the state that its parts share.
#ifndef SMARTREDIS_CONNECTION_H
#define SMARTREDIS_CONNECTION_H
#include "address.h"
#include "client.h"
#include "layout.h"
#include "logger.h"
#include <atomic>
#include <functional>
#include <map>
#include <mutex>

namespace SmartRedis {

/// The prefixes for writes and reads, and the kinds of names to which they apply.
class Prefixes {
    std::string writes_;
    std::string reads_;
    std::vector<std::string> sources_;

    std::string key(bool applies, bool reading, const std::string& name) const;

public:
    bool tensors = true, datasets = true, lists = true, models = false;

    /// The prefixes of SSKEYOUT and SSKEYIN, each with a point behind it.
    explicit Prefixes(ConfigOptions& options);
    /// RuntimeException if SSKEYIN does not have it.
    void set_source(const std::string& source);
    std::string tensor(const std::string& name, bool reading) const { return key(tensors, reading, name); }
    std::string list(const std::string& name, bool reading) const { return key(lists, reading, name); }
    std::string model(const std::string& name, bool reading) const { return key(models, reading, name); }
    /// The key of a dataset, prefix.{name}: lists hold it.
    std::string dataset(const std::string& name, bool reading) const { return key(datasets, reading, '{' + name + '}'); }
};

/// The name of the value of a dataset with this key.
inline std::string value_name(const std::string& dataset_key) { return dataset_key + ".meta"; }

struct Client::Impl : RedisServer {
    std::unique_ptr<ConfigOptions> options;
    bool cluster;
    std::vector<SRAddress> addresses;
    Prefixes prefixes;
    int64_t model_timeout_ms;

    Impl(const ConfigOptions& given, SRObject* context, const bool* is_cluster);

    /// The session with the daemon: a new one if this thread's last call failed because the session had ended.
    const tensorlend_client* get() const {
        if (take_disconnected())
            const_cast<Impl*>(this)->renew_session();
        return session_;
    }

    bool exists(const std::string& name) const;
    /// Whether a full key has a value: a tensor, a list, {name}.meta of a dataset or {name}.tensor of a dataset's tensor.
    bool key_exists(const std::string& key) const;
    bool hash_field_exists(const std::string& key, const std::string& field) override;
    /// Polls, and sleeps between polls until the name has a value.
    bool poll(const std::string& name, int milliseconds, int tries, const std::function<bool()>& is_there) const;

    /// Calls `use` with the tensor of a full key, which may be {name}.tensor of a dataset. RuntimeException without one.
    struct Found {
        Lease lease;
        const tensorlend_tensor* tensor;
        /// The name of the tensor in the leased dataset, or nullptr.
        const char* member;
    };
    Found find_tensor(const std::string& key) const;
    void rename(const std::string& from, const std::string& to) const;

    /// RuntimeException if the address is malformed, or not one of SSDB unless the program expects a cluster.
    void check_address(const std::string& address) const;
    std::string parameter(const std::string& name) const;

    /// The keys of a list's datasets.
    std::vector<std::string> items(const std::string& list, uint64_t first, uint64_t end) const;
    DataSet dataset(const std::string& name, const std::string& key) const;
    uint64_t length(const std::string& list) const;
    bool poll_length(const std::string& name, int length, int milliseconds, int tries, tensorlend_length how) const;

    void run_model(const std::string& name, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);
    void forget_models(const std::string& key);

    /// Memory that calls returned. Several threads may call.
    void* allocate(size_t bytes);
    void* give(const Tensor& tensor, SRMemoryLayout layout);
    size_t* give(const Dims& dims);

private:
    void connect(SRObject* context);
    tensorlend_status begin_session();
    void renew_session();

    SessionOptions session_options_;
    std::mutex sessions_lock_;
    /// Sessions that ended stay, because other threads may be in a call.
    std::vector<Session> sessions_;
    /// The last one.
    std::atomic<const tensorlend_client*> session_{nullptr};
    std::mutex lock_;
    Arena arena_;
    /// Connections to runners that no thread uses at present, by model.
    std::multimap<std::string, Model> models_;
};

} // namespace SmartRedis
#endif
