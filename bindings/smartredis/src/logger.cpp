// The process's log.
#include "logger.h"
#include "srexception.h"
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <mutex>

namespace SmartRedis {

struct Logger::State {
    std::mutex lock;
    bool configured = false;
    std::string file;
    SRLoggingLevel level = LLInfo;

    void configure();
    void write(const std::string& context, SRLoggingLevel at, const std::string& data);
};

namespace {
std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}
} // namespace

void Logger::State::configure() {
    configured = true;
    file = variable("SR_LOG_FILE");
    level = LLInfo;
    std::string given = variable("SR_LOG_LEVEL");
    std::transform(given.begin(), given.end(), given.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    const std::string asked = file;
    const bool writable = file.empty() || std::ofstream(file, std::ios::app).good();
    if (!writable)
        file.clear();
    if (given == "quiet")
        level = LLQuiet;
    else if (given == "debug")
        level = LLDebug;
    else if (given == "developer")
        level = LLDeveloper;
    else if (!given.empty() && given != "info")
        throw SRRuntimeException("SR_LOG_LEVEL is \"" + given + "\"; it must be quiet, info, debug or developer");
    if (!writable)
        throw SRRuntimeException("the log file " + asked + " (SR_LOG_FILE) cannot be written");
}

void Logger::State::write(const std::string& context, SRLoggingLevel at, const std::string& data) {
    std::lock_guard<std::mutex> guard(lock);
    if (!configured)
        configure();
    if (at > level)
        return;
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char clock[16];
    std::strftime(clock, sizeof clock, "%H-%M-%S", &local);
    const std::string line = context + "@" + clock + ":" + data + "\n";
    if (!file.empty()) {
        // Opened for each line, because several processes share the file and another process may rotate it.
        std::ofstream stream(file, std::ios::app);
        if (stream << line << std::flush)
            return;
        // A full disk must not stop a simulation: its log continues on standard output.
        std::cout << "the log file " << file << " cannot be written any more; the log continues here\n";
        file.clear();
    }
    std::cout << line << std::flush;
}

Logger::Logger() : state_(new State) {}
Logger::~Logger() = default;

Logger& Logger::get_instance() {
    // Never destroyed, because objects with static lifetime log when they end.
    static Logger* logger = new Logger;
    return *logger;
}

void Logger::configure_logging() {
    std::lock_guard<std::mutex> guard(state_->lock);
    state_->configure();
}

void Logger::log_data(const std::string& context, SRLoggingLevel level, const std::string& data) {
    state_->write(context, level, data);
}

void Logger::log_warning(const std::string& context, SRLoggingLevel level, const std::string& data) {
    log_data(context, level, "WARNING: " + data);
}

void Logger::log_error(const std::string& context, SRLoggingLevel level, const std::string& data) {
    log_data(context, level, "ERROR: " + data);
}

void SRObject::log_data(SRLoggingLevel level, const std::string& data) const {
    Logger::get_instance().log_data(_lname, level, data);
}

void SRObject::log_warning(SRLoggingLevel level, const std::string& data) const { log_data(level, "WARNING: " + data); }

void SRObject::log_error(SRLoggingLevel level, const std::string& data) const { log_data(level, "ERROR: " + data); }

} // namespace SmartRedis
