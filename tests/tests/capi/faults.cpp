// A write to a lease, which is explained before the process ends.
#include <tensorlend.hpp>

int main() {
    tensorlend::explain_faults();
    tensorlend::Client client;
    client.put("weights", std::vector<float>{1, 2});
    const tensorlend::Lease lease = client.get("weights");
    *const_cast<volatile float *>(lease.data<float>()) = 3;
}
