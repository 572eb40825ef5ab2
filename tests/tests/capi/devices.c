/* Tensors on a device: of the stand-in driver of the tests, or of a card. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

/* The start of DLPack's structure, as in its specification. */
struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    void *data;
    int32_t device_type, device_id, ndim;
};

/* Calls of the driver, by their addresses: a program usually links with -lcuda. */
static void *driver;
static int called(const char *name, void *one, void *two, uint64_t three) {
    int (*call)(void *, void *, uint64_t);
    *(void **)&call = dlsym(driver, name);
    IS(call != NULL);
    return call(one, two, three);
}

static tensorlend_client *client;
static const uint64_t four = 4;
static const float values[] = {1, 2, 3, 4};

static void is_held(const char *name, float first) {
    tensorlend_lease *lease;
    float copy[4];
    OK(tensorlend_get_device(client, name, &lease));
    OK(tensorlend_lease_copy(lease, NULL, copy, sizeof copy));
    IS(copy[0] == first && copy[3] == first + 3);
    tensorlend_lease_free(lease);
}

static void test_devices(void) {
    tensorlend_devices *devices;
    uint64_t slots, segments;
    OK(tensorlend_list_devices(client, &devices));
    IS(tensorlend_devices_count(devices) == 1 && tensorlend_devices_at(devices, 1) == NULL);
    const tensorlend_device *device = tensorlend_devices_at(devices, 0);
    IS(strncmp(device->uuid, "GPU-", 4) == 0 && device->number == 0 && strlen(device->name) > 0);
    IS(strcmp(device->allocator, "pool") == 0 && device->segment_bytes_max >= device->segment_bytes);
    OK(tensorlend_put_on(client, device->uuid, "a", TENSORLEND_F32, 1, &four, values, NULL));
    is_held("a", 1);
    OK(tensorlend_device_memory(client, device->uuid, &slots, &segments));
    IS(slots >= sizeof values && segments >= slots);
    OK(tensorlend_device_memory(client, "cuda:0", &slots, NULL));
    tensorlend_devices_free(devices);

    tensorlend_draft *draft;
    FAILS(TENSORLEND_ARGUMENT, "cuda:0", tensorlend_create_on(client, "gpu", TENSORLEND_F32, 1, &four, &draft));
    FAILS(TENSORLEND_ARGUMENT, "cuda:0", tensorlend_create_on(client, "cuda:-1", TENSORLEND_F32, 1, &four, &draft));
    FAILS(TENSORLEND_ARGUMENT, "device is NULL", tensorlend_create_on(client, NULL, TENSORLEND_F32, 1, &four, &draft));
    FAILS(TENSORLEND_DEVICE, "", tensorlend_create_on(client, "cuda:200", TENSORLEND_F32, 1, &four, &draft));
    FAILS(TENSORLEND_ARGUMENT, "0 to 16", tensorlend_create_on(client, "cuda:0", TENSORLEND_F32, 17, &four, &draft));
    FAILS(TENSORLEND_ARGUMENT, "data is NULL",
          tensorlend_put_on(client, "cuda:0", "a", TENSORLEND_F32, 1, &four, NULL, NULL));
    IS(draft == NULL && tensorlend_devices_count(NULL) == 0 && tensorlend_devices_at(NULL, 0) == NULL);
    tensorlend_devices_free(NULL);
}

static void test_leases(void) {
    tensorlend_lease *lease;
    tensorlend_version version;
    OK(tensorlend_current_version(client, "a", &version));
    FAILS(TENSORLEND_KIND, "get_device", tensorlend_get(client, "a", &lease));
    OK(tensorlend_get_value(client, "a", &lease));
    IS(tensorlend_lease_kind(lease) == TENSORLEND_KIND_DEVICE_TENSOR && tensorlend_lease_members(lease) == 0);
    IS(tensorlend_version_equal(tensorlend_lease_version(lease), version) && tensorlend_lease_validate(lease));
    const tensorlend_tensor *tensor = tensorlend_lease_tensor(lease);
    IS(tensor->data == NULL && tensor->device_data != 0 && tensor->device_data % 512 == 0);
    IS(strncmp(tensor->device, "GPU-", 4) == 0 && tensor->device_number == 0 && tensor->shape[0] == 4);
    IS(tensor->dtype == TENSORLEND_F32 && tensor->row_major && tensor->nbytes == 16 && tensor->metadata == NULL);
    bool finished = false;
    OK(tensorlend_lease_is_finished(lease, &finished));
    IS(finished);
    OK(tensorlend_lease_finish(lease));
    float copy[3];
    FAILS(TENSORLEND_ARGUMENT, "16 bytes", tensorlend_lease_copy(lease, NULL, copy, sizeof copy));
    FAILS(TENSORLEND_ARGUMENT, "no member", tensorlend_lease_copy(lease, "x", copy, sizeof copy));
    tensorlend_lease_free(lease);
    FAILS(TENSORLEND_NOT_FOUND, "missing", tensorlend_get_device(client, "missing", &lease));
    OK(tensorlend_put(client, "host", TENSORLEND_F32, 1, &four, values, NULL));
    FAILS(TENSORLEND_KIND, "host", tensorlend_get_device(client, "host", &lease));
    OK(tensorlend_get(client, "host", &lease));
    IS(tensorlend_lease_tensor(lease)->device == NULL && tensorlend_lease_tensor(lease)->device_data == 0);
    FAILS(TENSORLEND_ARGUMENT, "need no such call", tensorlend_lease_finish(lease));
    FAILS(TENSORLEND_ARGUMENT, "host memory", tensorlend_lease_record_stream(lease, NULL));
    tensorlend_lease_free(lease);
    OK(tensorlend_delete(client, "host", NULL));
}

static void test_streams_of_work(void) {
    void *stream = NULL, *context = NULL, *other = NULL;
    tensorlend_draft *draft, *another;
    tensorlend_lease *lease;
    IS(called("cuInit", NULL, NULL, 0) == 0);
    int (*retain)(void **, int);
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    IS(retain != NULL && retain(&context, 0) == 0 && called("cuCtxSetCurrent", context, NULL, 0) == 0);
    IS(called("cuStreamCreate", &stream, NULL, 0) == 0 && called("cuStreamCreate", &other, NULL, 0) == 0);

    OK(tensorlend_create_on_stream(client, "cuda:0", stream, TENSORLEND_F32, 1, &four, &draft));
    IS(tensorlend_draft_data(draft) == NULL && tensorlend_draft_bytes(draft) == 16);
    IS(tensorlend_draft_dtype(draft) == TENSORLEND_F32);
    FAILS(TENSORLEND_ARGUMENT, "16 bytes", tensorlend_draft_copy_from_host(draft, values, 12));
    OK(tensorlend_draft_copy_from_host(draft, values, sizeof values));
    OK(tensorlend_draft_set_metadata(draft, "metres", 6));
    OK(tensorlend_draft_set_timestamp(draft, 7));
    OK(tensorlend_create_on(client, "cuda:0", TENSORLEND_F32, 1, &four, &another));
    OK(tensorlend_draft_copy_from_device(another, tensorlend_draft_device_data(draft), stream));
    OK(tensorlend_draft_order_stream(another, other));
    OK(tensorlend_draft_record_stream(another, stream));
    OK(tensorlend_draft_finish(another));
    OK(tensorlend_publish(&draft, "b", NULL));
    IS(draft == NULL);
    is_held("b", 1);
    /* Readers wait for an event of this process. */
    OK(tensorlend_draft_record_stream(another, stream));
    OK(tensorlend_publish_early(&another, "c", stream, NULL));
    IS(another == NULL);
    FAILS(TENSORLEND_ARGUMENT, "draft is NULL", tensorlend_publish_early(&another, "c", stream, NULL));
    OK(tensorlend_get_device_early(client, "c", &lease));
    OK(tensorlend_lease_order_stream(lease, other));
    OK(tensorlend_lease_record_stream(lease, stream));
    OK(tensorlend_lease_finish(lease));
    tensorlend_lease_free(lease);
    is_held("c", 1);
    OK(tensorlend_get_device(client, "b", &lease));
    uint64_t bytes;
    IS(memcmp(tensorlend_lease_metadata(lease, &bytes), "metres", 6) == 0 && bytes == 6);
    IS(tensorlend_lease_timestamp(lease) == 7 && tensorlend_lease_tensor(lease)->timestamp_ns == 7);
    tensorlend_lease_free(lease);
    /* A draft that is not published. */
    OK(tensorlend_create_on_stream(client, "cuda:0", NULL, TENSORLEND_F32, 1, &four, &draft));
    tensorlend_draft_free(draft);
    OK(tensorlend_create(client, TENSORLEND_F32, 1, &four, &draft));
    FAILS(TENSORLEND_ARGUMENT, "host memory", tensorlend_draft_record_stream(draft, stream));
    FAILS(TENSORLEND_ARGUMENT, "host memory", tensorlend_publish_early(&draft, "c", stream, NULL));
    IS(draft != NULL && tensorlend_draft_device_data(draft) == 0 && tensorlend_draft_device_data(NULL) == 0);
    tensorlend_draft_free(draft);
    OK(tensorlend_delete(client, "c", NULL));
}

static void test_messages(void) {
    tensorlend_stream *stream;
    tensorlend_subscription *frames;
    tensorlend_draft *draft;
    tensorlend_lease *lease;
    float copy[4];
    OK(tensorlend_stream_open(client, "frames", 2, TENSORLEND_POLICY_BLOCK, &stream));
    OK(tensorlend_subscribe(client, "frames", TENSORLEND_START_OLDEST, 0, 0, &frames));
    OK(tensorlend_create_on(client, "cuda:0", TENSORLEND_F32, 1, &four, &draft));
    OK(tensorlend_draft_copy_from_host(draft, values, sizeof values));
    OK(tensorlend_stream_send(stream, &draft, -1, NULL));
    OK(tensorlend_subscription_recv(frames, -1, &lease, NULL));
    IS(tensorlend_lease_kind(lease) == TENSORLEND_KIND_DEVICE_TENSOR);
    OK(tensorlend_lease_copy(lease, NULL, copy, sizeof copy));
    IS(copy[2] == 3);
    tensorlend_lease_free(lease);
    tensorlend_subscription_close(frames);
    tensorlend_stream_close(stream);
    OK(tensorlend_stream_delete(client, "frames", NULL));
}

static void test_datasets(void) {
    tensorlend_draft *dataset, *draft, *host;
    tensorlend_lease *lease;
    struct DLManagedTensorVersioned *tensor;
    float copy[4] = {0};
    bool finished = false;
    OK(tensorlend_create_dataset(client, &dataset));
    OK(tensorlend_create_on(client, "cuda:0", TENSORLEND_F32, 1, &four, &draft));
    OK(tensorlend_draft_copy_from_host(draft, values, sizeof values));
    OK(tensorlend_draft_set_metadata(draft, "metres", 6));
    OK(tensorlend_dataset_add(dataset, "points", &draft));
    OK(tensorlend_create(client, TENSORLEND_F32, 1, &four, &host));
    memcpy(tensorlend_draft_data(host), values, sizeof values);
    OK(tensorlend_dataset_add(dataset, "host", &host));
    IS(draft == NULL && host == NULL);
    OK(tensorlend_create_on(client, "cuda:0", TENSORLEND_F32, 1, &four, &draft));
    FAILS(TENSORLEND_ARGUMENT, "points", tensorlend_dataset_add(dataset, "points", &draft));
    IS(draft != NULL);
    tensorlend_draft_free(draft);
    OK(tensorlend_publish(&dataset, "set", NULL));

    OK(tensorlend_get_dataset(client, "set", &lease));
    IS(tensorlend_lease_kind(lease) == TENSORLEND_KIND_DATASET && tensorlend_lease_members(lease) == 2);
    const tensorlend_tensor *points = tensorlend_lease_find(lease, "points");
    IS(points->data == NULL && points->device_data != 0 && strncmp(points->device, "GPU-", 4) == 0);
    IS(strcmp(points->name, "points") == 0 && points->nbytes == 16 && points->metadata_bytes == 6);
    const tensorlend_tensor *second = tensorlend_lease_member(lease, 1);
    IS(strcmp(second->name, "host") == 0 && second->device == NULL && ((const float *)second->data)[3] == 4);
    OK(tensorlend_lease_copy(lease, "points", copy, sizeof copy));
    IS(copy[0] == 1 && copy[3] == 4);
    FAILS(TENSORLEND_ARGUMENT, "16 bytes", tensorlend_lease_copy(lease, "points", copy, 12));
    FAILS(TENSORLEND_NOT_FOUND, "missing", tensorlend_lease_copy(lease, "missing", copy, sizeof copy));
    OK(tensorlend_lease_finish(lease));
    OK(tensorlend_lease_order_stream(lease, NULL));
    OK(tensorlend_lease_record_stream(lease, NULL));
    OK(tensorlend_lease_is_finished(lease, &finished));
    IS(finished);
    OK(tensorlend_lease_to_dlpack(lease, "points", &tensor));
    IS(tensor->device_type == 2 && (uint64_t)(uintptr_t)tensor->data == points->device_data);
    tensorlend_lease_free(lease); /* the tensor keeps the dataset */
    tensorlend_dlpack_free(tensor);
    OK(tensorlend_get_dataset(client, "set", &lease));
    OK(tensorlend_lease_to_dlpack(lease, "host", &tensor));
    IS(tensor->device_type == 1);
    tensorlend_dlpack_free(tensor);
    tensorlend_lease_free(lease);
    OK(tensorlend_delete(client, "set", NULL));
}

static void test_dlpack(void) {
    tensorlend_lease *lease;
    tensorlend_draft *draft;
    struct DLManagedTensorVersioned *tensor;
    OK(tensorlend_get_device(client, "a", &lease));
    OK(tensorlend_lease_to_dlpack(lease, NULL, &tensor));
    IS(tensor->device_type == 2 && tensor->device_id == 0 && tensor->ndim == 1 && tensor->flags == 1);
    IS((uint64_t)(uintptr_t)tensor->data == tensorlend_lease_tensor(lease)->device_data);
    tensorlend_lease_free(lease); /* the tensor keeps the memory */
    FAILS(TENSORLEND_ARGUMENT, "device type 2", tensorlend_create_from_dlpack(client, tensor, &draft));
    OK(tensorlend_create_from_dlpack_on(client, tensor, NULL, &draft));
    tensorlend_dlpack_free(tensor);
    OK(tensorlend_draft_to_dlpack(draft, &tensor));
    IS(tensor->device_type == 2 && tensor->flags == 0 && tensor->data != NULL);
    FAILS(TENSORLEND_ARGUMENT, "DLPack", tensorlend_publish(&draft, "d", NULL));
    tensorlend_dlpack_free(tensor);
    OK(tensorlend_publish(&draft, "d", NULL));
    is_held("d", 1);
    OK(tensorlend_create(client, TENSORLEND_F32, 1, &four, &draft));
    OK(tensorlend_draft_to_dlpack(draft, &tensor));
    tensorlend_draft *copy;
    FAILS(TENSORLEND_ARGUMENT, "device type 1", tensorlend_create_from_dlpack_on(client, tensor, NULL, &copy));
    FAILS(TENSORLEND_ARGUMENT, "tensor is NULL", tensorlend_create_from_dlpack_on(client, NULL, NULL, &copy));
    tensorlend_dlpack_free(tensor);
    tensorlend_draft_free(draft);
    OK(tensorlend_delete(client, "d", NULL));
}

static void test_fork(void) {
    tensorlend_lease *lease;
    tensorlend_draft *draft, *other;
    OK(tensorlend_get_device(client, "a", &lease));
    OK(tensorlend_create_on(client, "cuda:0", TENSORLEND_F32, 1, &four, &draft));
    pid_t child = fork();
    IS(child >= 0);
    if (child == 0) {
        float copy[4];
        bool finished;
        struct DLManagedTensorVersioned *tensor;
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_lease_copy(lease, NULL, copy, sizeof copy));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_lease_is_finished(lease, &finished));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_lease_record_stream(lease, NULL));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_lease_to_dlpack(lease, NULL, &tensor));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_draft_finish(draft));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_create_on(client, "cuda:0", TENSORLEND_F32, 1, &four, &other));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_get_device(client, "a", &lease));
        IS(tensorlend_draft_device_data(draft) == 0);
        tensorlend_draft_free(draft);
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    IS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tensorlend_draft_free(draft);
    tensorlend_lease_free(lease);
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    IS(driver != NULL);
    OK(tensorlend_connect(NULL, &client));
    test_devices();
    test_leases();
    test_streams_of_work();
    test_messages();
    test_datasets();
    test_dlpack();
    test_fork();
    OK(tensorlend_delete(client, "a", NULL));
    OK(tensorlend_delete(client, "b", NULL));
    tensorlend_client_free(client);
    puts("all is well");
    return 0;
}
