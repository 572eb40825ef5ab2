// The class of a connection to a Redis cluster. tensorlend has none: the constructor refuses.
#ifndef SMARTREDIS_REDISCLUSTER_H
#define SMARTREDIS_REDISCLUSTER_H
#ifdef __cplusplus
#include "client.h"
#include <cstdint>

namespace sw {
namespace redis {

/// CRC-16/XMODEM, with which a Redis cluster assigns a key to a hash slot. SmartRedis's header has it from redis++.
inline uint16_t crc16(const char* buf, int len) {
    unsigned crc = 0;
    for (int at = 0; at < len; at++) {
        crc ^= unsigned(static_cast<unsigned char>(buf[at])) << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
        crc &= 0xffff;
    }
    return uint16_t(crc);
}

} // namespace redis
} // namespace sw

namespace SmartRedis {

class RedisCluster {
public:
    explicit RedisCluster(ConfigOptions*) { refuse(); }

protected:
    std::string _get_crc16_prefix(uint64_t) { refuse(); }

private:
    [[noreturn]] static void refuse() {
        throw SRRuntimeException("there is no Redis cluster: this library uses a tensorlend daemon, so use Client");
    }
};

} // namespace SmartRedis
#endif
#endif
