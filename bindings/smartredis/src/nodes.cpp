// The client's calls for administration. The only node of the database is the daemon.
#include "connection.h"
#include "json.h"
#include <fnmatch.h>

namespace SmartRedis {

namespace {
/// The parameters are values of the namespace, so that all programs see them. tensorlend itself does not use them.
const std::string PARAMETER = ".smartredis.config.";

struct Parameter {
    const char* name;
    const char* value;
    bool (*allows)(const std::string& value);
};

std::string lower(std::string text) {
    for (char& c : text)
        c = char(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

bool number(const std::string& value) {
    return !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
}

/// A number, with a unit such as k or MB or without.
bool bytes(const std::string& value) {
    const size_t digits = value.find_first_not_of("0123456789");
    if (digits == std::string::npos)
        return number(value);
    const std::string unit = lower(value.substr(digits));
    return digits > 0 && (fnmatch("[kmg]", unit.c_str(), 0) == 0 || fnmatch("[kmg]b", unit.c_str(), 0) == 0);
}

bool flag(const std::string& value) { return value == "yes" || value == "no"; }
bool any(const std::string&) { return true; }

constexpr Parameter PARAMETERS[] = {
    {"appendonly", "no", flag},
    {"cluster-node-timeout", "15000", number},
    {"ignore-warnings", "", any},
    {"lua-time-limit", "5000", number},
    {"maxclients", "10000", number},
    {"maxmemory", "0", bytes},
    {"maxmemory-policy", "noeviction", any},
    {"save", "", any},
    {"timeout", "0", number},
};

template <typename List> Listing listed(const tensorlend_client* session, List list) {
    Listing listing;
    check(list(session, "*", listing.place()), "list of names");
    return listing;
}

template <typename List, typename End> void end_each(const tensorlend_client* session, List list, End end) {
    const Listing listing = listed(session, list);
    for (uint64_t at = 0; at < tensorlend_listing_count(listing.get()); at++) {
        const std::string name = tensorlend_listing_at(listing.get(), at)->name;
        if (name.compare(0, PARAMETER.size(), PARAMETER) != 0)
            check(end(session, name.c_str(), nullptr), "\"" + name + "\"");
    }
}
} // namespace

std::string Client::Impl::parameter(const std::string& name) const {
    Lease lease;
    const tensorlend_status status = tensorlend_get(get(), (PARAMETER + name).c_str(), lease.place());
    if (status == TENSORLEND_OK) {
        const tensorlend_tensor* tensor = tensorlend_lease_tensor(lease.get());
        const Json value = Json::parse({static_cast<const char*>(tensor->metadata), size_t(tensor->metadata_bytes)});
        const Json* found = value.find("value");
        if (found != nullptr)
            return found->text;
    } else if (status != TENSORLEND_NOT_FOUND) {
        raise(status, "parameter \"" + name + "\"");
    }
    for (const Parameter& each : PARAMETERS)
        if (name == each.name)
            return each.value;
    return "";
}

parsed_reply_nested_map Client::get_db_node_info(const std::string address) {
    impl_->check_address(address);
    Stat stat;
    check(tensorlend_stat_get(impl_->get(), stat.place()), "daemon");
    const tensorlend_figures& figures = *tensorlend_stat_figures(stat.get());
    const uint64_t keys = tensorlend_listing_count(listed(impl_->get(), tensorlend_list_names).get()) +
                          tensorlend_listing_count(listed(impl_->get(), tensorlend_list_lists).get());
    const auto text = [](auto number) { return std::to_string(number); };
    return {
        {"Server",
         {{"tensorlend_version", figures.version},
          {"process_id", text(figures.pid)},
          {"uptime_in_seconds", text(figures.uptime_ns / 1'000'000'000)},
          {"namespace", tensorlend_client_namespace(impl_->get())}}},
        {"Clients", {{"connected_clients", text(figures.clients)}}},
        {"Memory",
         {{"used_memory", text(figures.bytes_in_use)},
          {"used_memory_rss", text(figures.pool_bytes)},
          {"maxmemory", text(figures.pool_bytes_max)}}},
        {"Persistence", {{"loading", "0"}, {"rdb_last_save_time", "0"}}},
        {"Stats", {{"total_requests", text(figures.requests)}, {"total_wakeups", text(figures.wakeups)}}},
        {"Keyspace", {{"db0", "keys=" + text(keys)}}},
    };
}

parsed_reply_map Client::get_db_cluster_info(const std::string address) {
    if (!impl_->cluster)
        throw SRRuntimeException("this is no cluster: SR_DB_TYPE is Standalone");
    impl_->check_address(address);
    check(tensorlend_ping(impl_->get(), nullptr), "daemon");
    return {{"cluster_state", "ok"}, {"cluster_known_nodes", "1"}, {"cluster_size", "1"}};
}

parsed_reply_map Client::get_ai_info(const std::string& address, const std::string& key, bool reset_stat) {
    impl_->check_address(address);
    check_name(key);
    Lease lease;
    check(tensorlend_model_get(impl_->get(), key.c_str(), lease.place()), "model \"" + key + "\"");
    const tensorlend_tensor* tensor = tensorlend_lease_tensor(lease.get());
    std::string tag;
    if (tensor->metadata_bytes > 0) {
        const Json options = Json::parse({static_cast<const char*>(tensor->metadata), size_t(tensor->metadata_bytes)});
        if (const Json* found = options.find("tag"))
            tag = found->text;
    }
    if (reset_stat)
        log_warning(LLInfo, "get_ai_info: the counters of runners are not reset from C and C++");
    return {{"key", key}, {"type", "MODEL"}, {"backend", "ONNX"}, {"device", "CPU"}, {"tag", tag}};
}

void Client::flush_db(const std::string address) {
    impl_->check_address(address);
    end_each(impl_->get(), tensorlend_list_names, tensorlend_delete);
    end_each(impl_->get(), tensorlend_list_lists, tensorlend_list_clear);
    end_each(impl_->get(), tensorlend_list_streams, tensorlend_stream_delete);
}

std::unordered_map<std::string, std::string> Client::config_get(const std::string expression, const std::string address) {
    impl_->check_address(address);
    std::unordered_map<std::string, std::string> found;
    for (const Parameter& each : PARAMETERS)
        if (fnmatch(lower(expression).c_str(), each.name, 0) == 0)
            found[each.name] = impl_->parameter(each.name);
    return found;
}

void Client::config_set(const std::string config_param, const std::string value, const std::string address) {
    impl_->check_address(address);
    const std::string name = lower(config_param);
    const auto known = std::find_if(std::begin(PARAMETERS), std::end(PARAMETERS), [&](const Parameter& each) { return name == each.name; });
    if (known == std::end(PARAMETERS))
        throw SRRuntimeException("there is no parameter \"" + config_param + "\"");
    if (!known->allows(value))
        throw SRRuntimeException("\"" + value + "\" cannot be the value of " + config_param);
    Draft draft = create_draft(impl_->get(), SRTensorTypeUint8, {1}, SRMemLayoutContiguous, config_param);
    *static_cast<char*>(tensorlend_draft_data(draft.get())) = 0;
    std::string metadata = "{\"value\":";
    append_quoted(metadata, value);
    metadata += '}';
    check(tensorlend_draft_set_metadata(draft.get(), metadata.data(), metadata.size()), config_param);
    check(tensorlend_publish(draft.place(), (PARAMETER + name).c_str(), nullptr), config_param);
}

void Client::save(const std::string address) {
    impl_->check_address(address);
    log_warning(LLInfo, "save: this call writes no file, and the values stay in memory (see `tensorlend save`)");
}

} // namespace SmartRedis
