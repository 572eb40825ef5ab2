// The class of a connection to a Redis cluster. tensorlend has none: the constructor refuses.
#ifndef SMARTREDIS_REDISCLUSTER_H
#define SMARTREDIS_REDISCLUSTER_H
#ifdef __cplusplus
#include "client.h"

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
