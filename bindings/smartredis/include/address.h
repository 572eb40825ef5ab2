// An address of SSDB.
#ifndef SMARTREDIS_ADDRESS_H
#define SMARTREDIS_ADDRESS_H
#ifdef __cplusplus
#include <cstdint>
#include <string>

namespace SmartRedis {

/// A host and a port, or the path of a socket.
class SRAddress {
public:
    SRAddress() = default;
    /// Parses host:port, tcp://host:port or unix://path. RuntimeException for other texts.
    SRAddress(const std::string& addr_spec);
    SRAddress(const SRAddress&) = default;
    SRAddress& operator=(const SRAddress&) = default;
    virtual ~SRAddress() = default;
    bool operator==(const SRAddress& other) const;
    virtual std::string to_string(bool add_tcp_protocol = false) const;

    bool _is_tcp = true;
    std::string _tcp_host;
    std::uint16_t _tcp_port = 0;
    std::string _uds_file;
};

} // namespace SmartRedis
#endif
#endif
