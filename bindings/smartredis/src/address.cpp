// Parses and prints the addresses of SSDB.
#include "address.h"
#include "srexception.h"

namespace SmartRedis {

namespace {
const std::string UNIX = "unix://";
const std::string TCP = "tcp://";

bool starts_with(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

/// Returns 0 if the text is no port.
unsigned long port_in(const std::string& text) {
    if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos)
        return 0;
    const unsigned long port = std::stoul(text);
    return port <= UINT16_MAX ? port : 0;
}
} // namespace

SRAddress::SRAddress(const std::string& addr_spec) {
    if (starts_with(addr_spec, UNIX) && addr_spec != UNIX) {
        _is_tcp = false;
        _uds_file = addr_spec.substr(UNIX.size());
        return;
    }
    const std::string bare = starts_with(addr_spec, TCP) ? addr_spec.substr(TCP.size()) : addr_spec;
    const size_t colon = bare.find(':');
    const unsigned long port = colon == std::string::npos ? 0 : port_in(bare.substr(colon + 1));
    if (colon == 0 || port == 0)
        throw SRRuntimeException("\"" + addr_spec + "\" is no address: give host:port, with a port from 1 to 65535, or unix://path");
    _tcp_host = bare.substr(0, colon);
    _tcp_port = std::uint16_t(port);
}

bool SRAddress::operator==(const SRAddress& other) const {
    return _is_tcp == other._is_tcp && _tcp_host == other._tcp_host && _tcp_port == other._tcp_port && _uds_file == other._uds_file;
}

std::string SRAddress::to_string(bool add_tcp_protocol) const {
    return _is_tcp ? (add_tcp_protocol ? TCP : "") + _tcp_host + ':' + std::to_string(_tcp_port) : UNIX + _uds_file;
}

} // namespace SmartRedis
