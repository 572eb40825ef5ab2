// The class of a connection to one Redis server. tensorlend has none: the constructor refuses.
#ifndef SMARTREDIS_REDIS_H
#define SMARTREDIS_REDIS_H
#ifdef __cplusplus
#include "address.h"
#include "client.h"

namespace SmartRedis {

class Redis {
public:
    explicit Redis(ConfigOptions*) {
        throw SRRuntimeException("there is no Redis server: this library uses a tensorlend daemon, so use Client");
    }
};

} // namespace SmartRedis
#endif
#endif
