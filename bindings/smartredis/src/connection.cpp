// A client's connection to its daemon.
#include "connection.h"
#include <cctype>
#include <climits>
#include <set>

namespace SmartRedis {

namespace {
constexpr int64_t MODEL_TIMEOUT_MS = 60'000;

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        if (comma > at)
            parts.push_back(text.substr(at, comma - at));
        at = comma + 1;
    }
    return parts;
}

std::vector<SRAddress> parsed_ssdb(const std::string& ssdb) {
    if (ssdb.empty())
        throw SRRuntimeException("SSDB is not set; it must be as host:port or unix://path");
    for (const char c : ssdb)
        if (!std::isalnum(static_cast<unsigned char>(c)) && std::string(".:,/_-").find(c) == std::string::npos)
            throw SRRuntimeException("SSDB is \"" + ssdb + "\"; no address has the character '" + c + "'");
    std::vector<SRAddress> addresses;
    for (const std::string& address : split(ssdb))
        addresses.emplace_back(address);
    if (addresses.empty())
        throw SRRuntimeException("SSDB has no address");
    return addresses;
}

bool is_cluster(ConfigOptions& options) {
    std::string type = options._resolve_string_option("SR_DB_TYPE", "Clustered");
    for (char& c : type)
        c = char(std::tolower(static_cast<unsigned char>(c)));
    if (type != "clustered" && type != "standalone")
        throw SRRuntimeException("SR_DB_TYPE is \"" + type + "\"; it must be Clustered or Standalone");
    return type == "clustered";
}

int64_t positive(ConfigOptions& options, const char* name, int64_t value, bool seconds) {
    const int64_t given = options._resolve_integer_option(name, value);
    if (given <= 0 || (seconds && given > INT_MAX / 1000))
        throw SRParameterException(std::string(name) + " is " + std::to_string(given) + "; it must be from 1 to " +
                                   std::to_string(seconds ? INT_MAX / 1000 : INT_MAX));
    return given;
}

/// Returns true the first time in this process: programs make hundreds of clients.
bool first_time(const std::string& hosts) {
    static std::mutex lock;
    static std::set<std::string> logged;
    std::lock_guard<std::mutex> guard(lock);
    return logged.insert(hosts).second;
}
} // namespace

Prefixes::Prefixes(ConfigOptions& options) : writes_(options._resolve_string_option("SSKEYOUT", "")) {
    if (!writes_.empty())
        writes_ += '.';
    for (const std::string& source : split(options._resolve_string_option("SSKEYIN", "")))
        sources_.push_back(source + '.');
    if (!sources_.empty())
        reads_ = sources_.front();
}

std::string Prefixes::key(bool applies, bool reading, const std::string& name) const {
    check_name(name);
    return applies ? (reading ? reads_ : writes_) + name : name;
}

void Prefixes::set_source(const std::string& source) {
    if (std::find(sources_.begin(), sources_.end(), source + '.') == sources_.end())
        throw SRRuntimeException("\"" + source + "\" is not a data source of SSKEYIN");
    reads_ = source + '.';
}

Client::Impl::Impl(const ConfigOptions& given, SRObject* context, const bool* cluster_flag)
    : options(new ConfigOptions(given)), cluster(cluster_flag != nullptr ? *cluster_flag : is_cluster(*options)),
      addresses(parsed_ssdb(options->_resolve_string_option("SSDB", ""))), prefixes(*options),
      model_timeout_ms(positive(*options, "SR_MODEL_TIMEOUT", MODEL_TIMEOUT_MS, false)) {
    connect(context);
}

void Client::Impl::connect(SRObject* context) {
    const int64_t seconds = positive(*options, "SR_CONN_TIMEOUT", 100, true);
    const std::chrono::milliseconds interval(positive(*options, "SR_CONN_INTERVAL", 1000, false));
    positive(*options, "SR_CMD_TIMEOUT", 100, true);
    positive(*options, "SR_CMD_INTERVAL", 1000, false);
    positive(*options, "SR_SOCKET_TIMEOUT", 250, false);

    check(tensorlend_options_new(session_options_.place()), "options");
    // Only for the daemon's log: a name that is no label does no harm.
    if (!context->get_context().empty())
        static_cast<void>(tensorlend_options_label(session_options_.get(), context->get_context().c_str()));
    const auto unix_address = std::find_if(addresses.begin(), addresses.end(), [](const SRAddress& a) { return !a._is_tcp; });
    if (unix_address != addresses.end())
        check(tensorlend_options_socket(session_options_.get(), unix_address->_uds_file.c_str()), "SSDB");

    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    for (bool waits = false;; waits = true) {
        const tensorlend_status status = begin_session();
        if (status == TENSORLEND_OK)
            break;
        if (status != TENSORLEND_DISCONNECTED)
            throw SRDatabaseException(std::string("no connection: ") + tensorlend_error_message());
        // Try again until the deadline, because a program may start before its daemon does.
        if (std::chrono::steady_clock::now() + interval > deadline)
            throw SRDatabaseException("no connection within " + std::to_string(seconds) +
                                      " s (SR_CONN_TIMEOUT): " + tensorlend_error_message());
        if (!waits)
            context->log_warning(LLInfo, std::string("no daemon yet, waiting: ") + tensorlend_error_message());
        std::this_thread::sleep_for(interval);
    }
    if (unix_address == addresses.end()) {
        const std::string hosts = options->_resolve_string_option("SSDB", "");
        if (first_time(hosts))
            context->log_data(LLInfo, "SSDB is " + hosts + "; this program uses the tensorlend daemon of this machine");
    }
}

tensorlend_status Client::Impl::begin_session() {
    Session next;
    const tensorlend_status status = tensorlend_connect(session_options_.get(), next.place());
    if (status == TENSORLEND_OK) {
        session_ = next.get();
        sessions_.push_back(std::move(next));
    }
    return status;
}

void Client::Impl::renew_session() {
    std::lock_guard<std::mutex> guard(sessions_lock_);
    // Another thread may have begun a session, or the daemon may have continued the present one.
    if (tensorlend_ping(session_, nullptr) != TENSORLEND_DISCONNECTED || begin_session() != TENSORLEND_OK)
        return;
    Logger::get_instance().log_warning("SmartRedis", LLInfo, "a new session: the daemon had ended the last one, or has restarted");
    std::lock_guard<std::mutex> models_guard(lock_);
    models_.clear();
}

void Client::Impl::check_address(const std::string& address) const {
    const SRAddress wanted(address);
    if (!cluster && std::find(addresses.begin(), addresses.end(), wanted) == addresses.end())
        throw SRRuntimeException(address + " is not in SSDB");
}

void* Client::Impl::allocate(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock_);
    return arena_.allocate(bytes);
}

void* Client::Impl::give(const Tensor& tensor, SRMemoryLayout layout) {
    std::lock_guard<std::mutex> guard(lock_);
    return in_layout(arena_, tensor, layout);
}

size_t* Client::Impl::give(const Dims& dims) {
    std::lock_guard<std::mutex> guard(lock_);
    return arena_.copy(dims);
}

void Client::Impl::run_model(const std::string& name, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
    const std::string key = prefixes.model(name, true), what = "model \"" + name + "\"";
    // Inputs are given by position, because programs for other backends do not know the names in the graph.
    ModelRequest request;
    check(tensorlend_model_request_new(request.place()), what);
    for (size_t at = 0; at < inputs.size(); at++)
        check(tensorlend_model_request_input_from(request.get(), ("#" + std::to_string(at)).c_str(),
                                                  prefixes.tensor(inputs[at], true).c_str()),
              what);
    for (size_t at = 0; at < outputs.size(); at++)
        check(tensorlend_model_request_output(request.get(), ("#" + std::to_string(at)).c_str(),
                                              prefixes.tensor(outputs[at], false).c_str()),
              what);
    // One thread at a time uses a connection to a runner.
    Model model;
    {
        std::lock_guard<std::mutex> guard(lock_);
        const auto idle = models_.find(key);
        if (idle != models_.end()) {
            model = std::move(idle->second);
            models_.erase(idle);
        }
    }
    if (!model)
        check(tensorlend_model_open(get(), key.c_str(), model.place()), what);
    Lease response;
    check(tensorlend_model_run(model.get(), request.place(), model_timeout_ms * 1'000'000, response.place()), what);
    std::lock_guard<std::mutex> guard(lock_);
    models_.emplace(key, std::move(model));
}

void Client::Impl::forget_models(const std::string& key) {
    std::lock_guard<std::mutex> guard(lock_);
    models_.erase(key);
}

} // namespace SmartRedis
