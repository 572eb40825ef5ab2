/* Every function of tensorlend.h, with valid and with invalid arguments. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The structures of DLPack 1.x, as in its specification. */
typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Array;

struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    Array array;
};

static tensorlend_client *client;

static tensorlend_draft *numbers(uint32_t count, uint32_t first) {
    const uint64_t size = count;
    tensorlend_draft *draft;
    OK(tensorlend_create(client, TENSORLEND_U32, 1, &size, &draft));
    IS(tensorlend_draft_bytes(draft) == count * sizeof(uint32_t) && tensorlend_draft_dtype(draft) == TENSORLEND_U32);
    for (uint32_t i = 0; i < count; i++)
        ((uint32_t *)tensorlend_draft_data(draft))[i] = first + i;
    return draft;
}

static uint32_t first_of(const tensorlend_lease *lease) {
    return *(const uint32_t *)tensorlend_lease_tensor(lease)->data;
}

static uint32_t held(const char *name) {
    tensorlend_lease *lease;
    OK(tensorlend_get(client, name, &lease));
    uint32_t first = first_of(lease);
    tensorlend_lease_free(lease);
    return first;
}

/* A handler of memory pressure that deletes "cache", once. */
static bool relieve(void *context, uint64_t bytes, uint32_t attempt) {
    bool existed;
    tensorlend_client **asked = context;
    IS(bytes == 1 << 20 && attempt >= 1);
    OK(tensorlend_delete(*asked, "cache", &existed));
    return existed;
}

static void test_pressure(void) {
    tensorlend_options *options;
    tensorlend_client *small = NULL;
    tensorlend_draft *draft, *second;
    const uint64_t size = 1 << 20;
    tensorlend_outstanding *outstanding;
    FAILS(TENSORLEND_ARGUMENT, "tracking", tensorlend_outstanding_get(client, &outstanding));
    OK(tensorlend_options_new(&options));
    OK(tensorlend_options_memory_limit(options, size));
    OK(tensorlend_options_tracking(options));
    FAILS(TENSORLEND_ARGUMENT, "relief", tensorlend_options_on_memory_pressure(options, NULL, NULL));
    OK(tensorlend_options_on_memory_pressure(options, relieve, &small));
    OK(tensorlend_connect(options, &small));
    tensorlend_options_free(options);
    OK(tensorlend_create(small, TENSORLEND_U8, 1, &size, &draft));
    OK(tensorlend_publish(&draft, "cache", NULL));
    OK(tensorlend_create(small, TENSORLEND_U8, 1, &size, &draft));
    FAILS(TENSORLEND_LIMIT, "memory limit", tensorlend_create(small, TENSORLEND_U8, 1, &size, &second));
    IS(tensorlend_error_limit() == TENSORLEND_LIMIT_CLIENT_BYTES);
    IS(strcmp(tensorlend_error_code(), "TL-0203") == 0);
    IS(strcmp(tensorlend_limit_name(tensorlend_error_limit()), "client-bytes") == 0);
    OK(tensorlend_outstanding_get(small, &outstanding));
    IS(tensorlend_outstanding_count(outstanding) == 1 && tensorlend_outstanding_bytes(outstanding) == size);
    IS(strstr(tensorlend_outstanding_text(outstanding), "drafts: 1 allocation") != NULL);
    tensorlend_outstanding_free(outstanding);
    tensorlend_draft_free(draft);
    tensorlend_client_free(small);
}

static void test_connecting(void) {
    tensorlend_options *options;
    tensorlend_client *other = (tensorlend_client *)&options;
    IS(tensorlend_abi() == TENSORLEND_ABI && strchr(tensorlend_library_version(), '.') != NULL);
    OK(tensorlend_options_new(&options));
    OK(tensorlend_options_socket(options, "/nowhere/at/all"));
    FAILS(TENSORLEND_DISCONNECTED, "/nowhere/at/all", tensorlend_connect(options, &other));
    IS(other == NULL);
    OK(tensorlend_options_socket(options, getenv("TENSORLEND_SOCKET")));
    OK(tensorlend_options_label(options, "c test"));
    OK(tensorlend_options_harden(options, false));
    OK(tensorlend_options_memory_limit(options, 1 << 20));
    OK(tensorlend_options_statistics(options));
    OK(tensorlend_connect(options, &other));
    const uint64_t size = 2 << 20;
    tensorlend_draft *draft;
    FAILS(TENSORLEND_LIMIT, "memory limit", tensorlend_create(other, TENSORLEND_U8, 1, &size, &draft));
    IS(draft == NULL);
    tensorlend_client_free(other);
    OK(tensorlend_options_namespace(options, "nobody's"));
    FAILS(TENSORLEND_REFUSED, "nobody's", tensorlend_connect(options, &other));
    tensorlend_options_free(options);

    OK(tensorlend_connect(NULL, &client));
    IS(strlen(tensorlend_client_namespace(client)) > 0);
    IS(strcmp(tensorlend_client_daemon_version(client), tensorlend_library_version()) == 0);
    uint64_t nanoseconds = 0;
    OK(tensorlend_ping(client, &nanoseconds));
    IS(nanoseconds > 0);
    OK(tensorlend_ping(client, NULL));
    tensorlend_stat *stat;
    OK(tensorlend_stat_get(client, &stat));
    const tensorlend_figures *figures = tensorlend_stat_figures(stat);
    IS(figures->pid > 0 && figures->clients >= 1);
    IS(strcmp(figures->mode, "user") == 0 || strcmp(figures->mode, "system") == 0);
    IS(figures->pool_bytes_max > 0 && strlen(figures->version) > 0);
    tensorlend_stat_free(stat);
}

static void test_names(void) {
    tensorlend_version first, second, none = {{0, 0}};
    tensorlend_draft *draft = numbers(3, 7);
    OK(tensorlend_draft_set_metadata(draft, "metres", 6));
    OK(tensorlend_draft_set_timestamp(draft, 1700000000));
    OK(tensorlend_publish(&draft, "n", &first));
    IS(draft == NULL);
    tensorlend_lease *lease, *again;
    OK(tensorlend_get(client, "n", &lease));
    const tensorlend_tensor *tensor = tensorlend_lease_tensor(lease);
    IS(tensor->dtype == TENSORLEND_U32 && tensor->ndim == 1 && tensor->shape[0] == 3);
    IS(tensor->strides[0] == 1 && tensor->row_major && tensor->elements == 3 && tensor->nbytes == 12);
    IS(tensor->metadata_bytes == 6 && memcmp(tensor->metadata, "metres", 6) == 0);
    IS(tensorlend_lease_metadata(lease, NULL) == tensor->metadata);
    IS(tensor->timestamp_ns == 1700000000 && tensorlend_lease_timestamp(lease) == 1700000000);
    uint64_t bytes;
    IS(memcmp(tensorlend_lease_metadata(lease, &bytes), "metres", 6) == 0 && bytes == 6);
    IS(first_of(lease) == 7 && tensor->name == NULL && tensorlend_lease_validate(lease));
    IS(tensorlend_lease_kind(lease) == TENSORLEND_KIND_TENSOR && tensorlend_lease_members(lease) == 0);
    IS(tensorlend_version_equal(tensorlend_lease_version(lease), first));

    const uint32_t other[2][2] = {{1, 2}, {3, 4}};
    const uint64_t shape[] = {2, 2};
    OK(tensorlend_put(client, "n", TENSORLEND_U32, 2, shape, other, &second));
    IS(!tensorlend_version_equal(first, second) && !tensorlend_version_equal(second, none));
    IS(first_of(lease) == 7 && held("n") == 1);
    OK(tensorlend_get(client, "n", &again));
    bytes = 1;
    IS(tensorlend_lease_metadata(again, &bytes) == NULL && bytes == 0);
    IS(tensorlend_lease_tensor(again)->metadata == NULL && tensorlend_lease_tensor(again)->metadata_bytes == 0);
    tensorlend_lease_free(again);
    OK(tensorlend_lease_clone(lease, &again));
    tensorlend_lease_free(lease);
    IS(first_of(again) == 7);
    tensorlend_lease_free(again);

    uint32_t copy[4] = {0};
    tensorlend_version read;
    OK(tensorlend_get_into(client, "n", copy, sizeof copy, &read));
    IS(copy[3] == 4 && tensorlend_version_equal(read, second));
    FAILS(TENSORLEND_ARGUMENT, "16 bytes", tensorlend_get_into(client, "n", copy, 12, NULL));
    OK(tensorlend_current_version(client, "n", &read));
    IS(tensorlend_version_equal(read, second));
    OK(tensorlend_current_version(client, "missing", &read));
    IS(tensorlend_version_equal(read, none));
    bool is = false;
    OK(tensorlend_exists(client, "n", &is));
    IS(is);
    OK(tensorlend_copy(client, "n", "m", NULL));
    OK(tensorlend_rename(client, "m", "o"));
    IS(held("o") == 1);
    FAILS(TENSORLEND_NOT_FOUND, "\"m\"", tensorlend_get(client, "m", &lease));
    IS(lease == NULL);
    OK(tensorlend_wait_for(client, "n", 0, &lease));
    tensorlend_lease_free(lease);
    FAILS(TENSORLEND_TIMEOUT, "missing", tensorlend_wait_for(client, "missing", 1000000, &lease));
    FAILS(TENSORLEND_TIMEOUT, "\"n\"", tensorlend_wait_newer(client, "n", second, 1000000, &lease));
    OK(tensorlend_wait_newer(client, "n", first, -1, &lease));
    tensorlend_lease_free(lease);
    OK(tensorlend_get_value(client, "n", &lease));
    tensorlend_lease_free(lease);
    FAILS(TENSORLEND_KIND, "get", tensorlend_get_dataset(client, "n", &lease));
    const char *names[] = {"o", "n", "o"};
    tensorlend_leases *leases;
    OK(tensorlend_get_many(client, names, 3, &leases));
    IS(tensorlend_leases_count(leases) == 3 && tensorlend_leases_at(leases, 3) == NULL);
    IS(first_of(tensorlend_leases_at(leases, 0)) == 1 && first_of(tensorlend_leases_at(leases, 2)) == 1);
    IS(tensorlend_version_equal(tensorlend_lease_version(tensorlend_leases_at(leases, 1)), second));
    tensorlend_leases_free(leases);
    OK(tensorlend_get_many(client, NULL, 0, &leases));
    IS(tensorlend_leases_count(leases) == 0);
    tensorlend_leases_free(leases);
    names[1] = "missing";
    FAILS(TENSORLEND_NOT_FOUND, "\"missing\"", tensorlend_get_many(client, names, 3, &leases));
    IS(leases == NULL);
    names[1] = NULL;
    FAILS(TENSORLEND_ARGUMENT, "a name", tensorlend_get_many(client, names, 3, &leases));
    FAILS(TENSORLEND_ARGUMENT, "names", tensorlend_get_many(client, NULL, 1, &leases));
    FAILS(TENSORLEND_ARGUMENT, "leases", tensorlend_get_many(client, names, 1, NULL));
    OK(tensorlend_delete(client, "n", &is));
    IS(is);
    OK(tensorlend_delete(client, "n", &is));
    IS(!is);
    OK(tensorlend_delete(client, "o", NULL));

    draft = numbers(1, 1);
    OK(tensorlend_publish_for(&draft, "short", 1000000, TENSORLEND_EPHEMERAL, NULL));
    do
        OK(tensorlend_exists(client, "short", &is));
    while (is);
    /* A tensor without dimensions, and one without elements. */
    OK(tensorlend_put(client, "scalar", TENSORLEND_U32, 0, NULL, copy, NULL));
    IS(held("scalar") == 1);
    const uint64_t zero = 0;
    OK(tensorlend_put(client, "scalar", TENSORLEND_F64, 1, &zero, NULL, NULL));
    OK(tensorlend_delete(client, "scalar", NULL));
    /* A zero next to the largest valid size, and next to a larger one. */
    const uint64_t large[] = {INT64_MAX, 0, INT64_MAX}, larger[] = {0, UINT64_C(1) << 63};
    OK(tensorlend_create(client, TENSORLEND_F64, 3, large, &draft));
    IS(tensorlend_draft_bytes(draft) == 0);
    tensorlend_draft_free(draft);
    FAILS(TENSORLEND_ARGUMENT, "overflows", tensorlend_create(client, TENSORLEND_F64, 2, larger, &draft));
    IS(draft == NULL);
}

static void test_strides(void) {
    const uint64_t shape[] = {2, 3};
    const int64_t strides[] = {-4, 1};
    tensorlend_draft *draft;
    OK(tensorlend_create_strided(client, TENSORLEND_U8, 2, shape, strides, 4, &draft));
    IS(tensorlend_draft_bytes(draft) == 7);
    memcpy(tensorlend_draft_data(draft), "abc-def", 7);
    OK(tensorlend_publish(&draft, "flipped", NULL));
    tensorlend_lease *lease;
    OK(tensorlend_get(client, "flipped", &lease));
    const tensorlend_tensor *tensor = tensorlend_lease_tensor(lease);
    IS(!tensor->row_major && tensor->strides[0] == -4 && *(const char *)tensor->data == 'd');
    char copy[6];
    OK(tensorlend_lease_copy(lease, NULL, copy, 6));
    IS(memcmp(copy, "defabc", 6) == 0);
    FAILS(TENSORLEND_ARGUMENT, "6 bytes", tensorlend_lease_copy(lease, NULL, copy, 5));
    tensorlend_lease_free(lease);
    OK(tensorlend_delete(client, "flipped", NULL));
}

static tensorlend_draft *frame(uint32_t first) {
    tensorlend_draft *dataset, *member = numbers(2, first);
    OK(tensorlend_create_dataset(client, &dataset));
    OK(tensorlend_dataset_add(dataset, "left", &member));
    IS(member == NULL && tensorlend_draft_data(dataset) == NULL);
    member = numbers(2, first + 10);
    FAILS(TENSORLEND_ARGUMENT, "already", tensorlend_dataset_add(dataset, "left", &member));
    FAILS(TENSORLEND_ARGUMENT, "itself: add the draft of a tensor", tensorlend_dataset_add(dataset, "x", &dataset));
    FAILS(TENSORLEND_ARGUMENT, "tensor", tensorlend_dataset_add(member, "x", &dataset));
    tensorlend_draft *inner;
    OK(tensorlend_create_dataset(client, &inner));
    FAILS(TENSORLEND_ARGUMENT, "only tensors: add each tensor", tensorlend_dataset_add(dataset, "x", &inner));
    tensorlend_draft_free(inner);
    IS(member != NULL && dataset != NULL);
    OK(tensorlend_dataset_add(dataset, "right", &member));
    OK(tensorlend_draft_set_metadata(dataset, "pair", 4));
    OK(tensorlend_draft_set_timestamp(dataset, 5));
    return dataset;
}

static void test_datasets(void) {
    tensorlend_draft *dataset = frame(1);
    OK(tensorlend_publish(&dataset, "frame", NULL));
    tensorlend_lease *lease;
    FAILS(TENSORLEND_KIND, "get_dataset", tensorlend_get(client, "frame", &lease));
    const char *name = "frame";
    tensorlend_leases *leases;
    OK(tensorlend_get_many(client, &name, 1, &leases));
    IS(tensorlend_lease_members(tensorlend_leases_at(leases, 0)) == 2);
    tensorlend_leases_free(leases);
    OK(tensorlend_get_dataset(client, "frame", &lease));
    IS(tensorlend_lease_kind(lease) == TENSORLEND_KIND_DATASET && tensorlend_lease_members(lease) == 2);
    IS(tensorlend_lease_tensor(lease) == NULL && tensorlend_lease_member(lease, 2) == NULL);
    IS(strcmp(tensorlend_lease_member(lease, 1)->name, "right") == 0);
    IS(tensorlend_lease_find(lease, "right") == tensorlend_lease_member(lease, 1));
    IS(tensorlend_lease_find(lease, "middle") == NULL && tensorlend_lease_timestamp(lease) == 5);
    IS(*(const uint32_t *)tensorlend_lease_find(lease, "right")->data == 11);
    uint64_t bytes;
    IS(memcmp(tensorlend_lease_metadata(lease, &bytes), "pair", 4) == 0 && bytes == 4);
    uint32_t copy[2];
    OK(tensorlend_lease_copy(lease, "left", copy, sizeof copy));
    IS(copy[0] == 1 && copy[1] == 2);
    FAILS(TENSORLEND_NOT_FOUND, "middle", tensorlend_lease_copy(lease, "middle", copy, sizeof copy));
    FAILS(TENSORLEND_ARGUMENT, "dataset", tensorlend_lease_copy(lease, NULL, copy, sizeof copy));
    tensorlend_lease_free(lease);
}

static void test_listing(void) {
    tensorlend_listing *listing;
    OK(tensorlend_list_names(client, "fr*", &listing));
    IS(tensorlend_listing_count(listing) == 1 && tensorlend_listing_at(listing, 1) == NULL);
    const tensorlend_entry *entry = tensorlend_listing_at(listing, 0);
    IS(strcmp(entry->name, "frame") == 0 && entry->kind == TENSORLEND_KIND_DATASET);
    IS(entry->count == 2 && entry->nbytes == 16 && entry->metadata_bytes == 4 && entry->timestamp_ns == 5);
    IS(entry->pid == (uint32_t)getpid() && entry->uid == getuid() && entry->alive && !entry->ephemeral);
    IS(strcmp(entry->tensors[1]->name, "right") == 0 && entry->tensors[1]->shape[0] == 2);
    IS(entry->tensors[1]->data == NULL && entry->tensors[1]->row_major && entry->ttl_ns == 0);
    tensorlend_listing_free(listing);
    tensorlend_draft *draft = numbers(4, 0);
    OK(tensorlend_publish_for(&draft, "brief", UINT64_C(3600000000000), TENSORLEND_EPHEMERAL, NULL));
    OK(tensorlend_info(client, "brief", &listing));
    entry = tensorlend_listing_at(listing, 0);
    IS(entry->kind == TENSORLEND_KIND_TENSOR && entry->count == 1 && entry->tensors[0]->elements == 4);
    IS(entry->ephemeral && entry->ttl_ns > 0 && strlen(entry->label) > 0);
    tensorlend_listing_free(listing);
    FAILS(TENSORLEND_NOT_FOUND, "missing", tensorlend_info(client, "missing", &listing));
    IS(listing == NULL);
    OK(tensorlend_delete(client, "brief", NULL));
    OK(tensorlend_delete(client, "frame", NULL));
}

static void test_lists(void) {
    uint64_t number, length;
    for (uint32_t i = 0; i < 3; i++) {
        tensorlend_draft *item = i == 2 ? frame(20) : numbers(1, i);
        OK(tensorlend_list_append(client, "list", &item, &number));
        IS(number == i && item == NULL);
    }
    tensorlend_draft *draft = numbers(1, 9);
    OK(tensorlend_publish(&draft, "nine", NULL));
    const char *names[] = {"nine", "nine"};
    OK(tensorlend_list_append_names(client, "list", names, 2, &number));
    IS(number == 3);
    OK(tensorlend_list_length(client, "list", &length));
    IS(length == 5);
    OK(tensorlend_list_wait_length(client, "list", TENSORLEND_LENGTH_AT_LEAST, 5, -1, &length));
    OK(tensorlend_list_wait_length(client, "list", TENSORLEND_LENGTH_AT_MOST, 5, 0, NULL));
    FAILS(TENSORLEND_TIMEOUT, "list",
          tensorlend_list_wait_length(client, "list", TENSORLEND_LENGTH_EXACTLY, 7, 1000000, NULL));
    FAILS(TENSORLEND_ARGUMENT, "tensorlend_length", tensorlend_list_wait_length(client, "list", 3, 7, 0, NULL));
    OK(tensorlend_list_wait(client, "list", TENSORLEND_LENGTH_EXACTLY, 5, 0, NULL)); /* the other name */
    tensorlend_leases *leases;
    OK(tensorlend_list_get(client, "list", 4, UINT64_MAX, &leases));
    IS(tensorlend_leases_count(leases) == 1);
    tensorlend_leases_free(leases);
    OK(tensorlend_list_get_range(client, "list", 1, UINT64_MAX, &leases));
    IS(tensorlend_leases_count(leases) == 4 && tensorlend_leases_at(leases, 4) == NULL);
    IS(first_of(tensorlend_leases_at(leases, 0)) == 1);
    IS(tensorlend_lease_kind(tensorlend_leases_at(leases, 1)) == TENSORLEND_KIND_DATASET);
    tensorlend_lease *nine;
    OK(tensorlend_lease_clone(tensorlend_leases_at(leases, 3), &nine));
    tensorlend_leases_free(leases);
    IS(first_of(nine) == 9);
    tensorlend_lease_free(nine);
    FAILS(TENSORLEND_ARGUMENT, "end", tensorlend_list_get_range(client, "list", 2, 1, &leases));
    OK(tensorlend_list_rename(client, "list", "renamed"));
    FAILS(TENSORLEND_NOT_FOUND, "\"list\"", tensorlend_list_get_range(client, "list", 0, 1, &leases));
    tensorlend_listing *listing;
    OK(tensorlend_list_lists(client, "*", &listing));
    IS(tensorlend_listing_count(listing) == 1 && tensorlend_listing_at(listing, 0)->count == 5);
    IS(tensorlend_listing_at(listing, 0)->kind == TENSORLEND_KIND_LIST);
    tensorlend_listing_free(listing);
    bool existed;
    OK(tensorlend_list_clear(client, "renamed", &existed));
    IS(existed);
    OK(tensorlend_delete(client, "nine", NULL));
}

static void test_queues(void) {
    tensorlend_queue *queue;
    tensorlend_queue_item *item;
    tensorlend_draft *draft;
    uint64_t number, count;
    bool existed;
    FAILS(TENSORLEND_ARGUMENT, "name", tensorlend_queue_open(client, NULL, 0, &queue));
    IS(queue == NULL);
    OK(tensorlend_queue_open(client, "jobs", 2, &queue));
    IS(strcmp(tensorlend_queue_name(queue), "jobs") == 0);
    FAILS(TENSORLEND_TIMEOUT, "jobs", tensorlend_queue_get(queue, 0, &item));
    IS(item == NULL);
    FAILS(TENSORLEND_TIMEOUT, "jobs", tensorlend_queue_get(queue, 1000000, &item));
    for (uint32_t i = 0; i < 2; i++) {
        draft = numbers(3, i);
        OK(tensorlend_queue_put(queue, &draft, -1, &number));
        IS(number == i && draft == NULL);
    }
    draft = numbers(1, 9);
    FAILS(TENSORLEND_TIMEOUT, "jobs", tensorlend_queue_put(queue, &draft, 1000000, NULL));
    IS(draft == NULL); /* dropped */
    OK(tensorlend_queue_get(queue, SECONDS(60), &item));
    IS(tensorlend_queue_item_number(item) == 0 && first_of(tensorlend_queue_item_value(item)) == 0);
    OK(tensorlend_queue_waiting(queue, &count));
    IS(count == 1);
    OK(tensorlend_queue_claimed(queue, &count));
    IS(count == 1);
    /* The item that is given back is the next one. */
    OK(tensorlend_queue_item_give_back(&item));
    IS(item == NULL);
    FAILS(TENSORLEND_ARGUMENT, "item", tensorlend_queue_item_give_back(&item));
    OK(tensorlend_queue_get(queue, -1, &item));
    IS(tensorlend_queue_item_number(item) == 0);
    tensorlend_queue_item_free(item); /* gives it back, too */
    OK(tensorlend_queue_get(queue, -1, &item));
    IS(tensorlend_queue_item_number(item) == 0);
    tensorlend_lease *lease;
    OK(tensorlend_lease_clone(tensorlend_queue_item_value(item), &lease));
    OK(tensorlend_queue_item_done(&item, &existed));
    IS(item == NULL && existed && first_of(lease) == 0);
    tensorlend_lease_free(lease);
    FAILS(TENSORLEND_ARGUMENT, "item", tensorlend_queue_item_done(&item, NULL));
    /* One call confirms an item and claims the next one. */
    item = NULL;
    OK(tensorlend_queue_next(queue, -1, &item));
    IS(first_of(tensorlend_queue_item_value(item)) == 1);
    for (uint32_t i = 2; i < 4; i++) {
        draft = numbers(3, i);
        OK(tensorlend_queue_put(queue, &draft, -1, NULL));
    }
    OK(tensorlend_queue_next(queue, SECONDS(60), &item));
    IS(first_of(tensorlend_queue_item_value(item)) == 2);
    OK(tensorlend_queue_next(queue, 0, &item));
    IS(first_of(tensorlend_queue_item_value(item)) == 3);
    FAILS(TENSORLEND_TIMEOUT, "jobs", tensorlend_queue_next(queue, 1000000, &item));
    IS(item == NULL);
    OK(tensorlend_queue_claimed(queue, &count));
    IS(count == 0);
    FAILS(TENSORLEND_ARGUMENT, "item", tensorlend_queue_next(queue, 0, NULL));
    /* Several items in one request: all or none. */
    tensorlend_draft *drafts[3] = {numbers(1, 5), numbers(1, 6), NULL};
    FAILS(TENSORLEND_ARGUMENT, "item is NULL", tensorlend_queue_put_many(queue, drafts, 3, -1, NULL));
    drafts[2] = drafts[1];
    FAILS(TENSORLEND_ARGUMENT, "same draft: give each draft once", tensorlend_queue_put_many(queue, drafts, 3, -1, NULL));
    IS(drafts[0] != NULL && drafts[1] != NULL); /* not taken over */
    OK(tensorlend_queue_put_many(queue, drafts, 2, -1, &number));
    IS(number == 4 && drafts[0] == NULL && drafts[1] == NULL);
    drafts[0] = numbers(1, 7);
    FAILS(TENSORLEND_TIMEOUT, "jobs", tensorlend_queue_put_many(queue, drafts, 1, 1000000, NULL));
    IS(drafts[0] == NULL); /* dropped */
    for (int i = 0; i < 3; i++)
        drafts[i] = numbers(1, 8);
    FAILS(TENSORLEND_ARGUMENT, "1 to 2", tensorlend_queue_put_many(queue, drafts, 3, -1, NULL));
    OK(tensorlend_queue_put_many(queue, NULL, 0, -1, &number));
    IS(number == 0);
    FAILS(TENSORLEND_ARGUMENT, "items", tensorlend_queue_put_many(queue, NULL, 1, -1, &number));
    for (uint32_t i = 5; i < 7; i++) {
        OK(tensorlend_queue_next(queue, 0, &item));
        IS(first_of(tensorlend_queue_item_value(item)) == i);
    }
    OK(tensorlend_queue_item_done(&item, NULL));
    /* The claim of a queue that is cleared is over. */
    draft = numbers(3, 4);
    OK(tensorlend_queue_put(queue, &draft, -1, NULL));
    OK(tensorlend_queue_get(queue, -1, &item));
    OK(tensorlend_list_clear(client, "jobs", NULL));
    OK(tensorlend_queue_item_done(&item, &existed));
    IS(!existed);
    FAILS(TENSORLEND_ARGUMENT, "queue", tensorlend_queue_get(NULL, 0, &item));
    FAILS(TENSORLEND_ARGUMENT, "items", tensorlend_queue_waiting(queue, NULL));
    tensorlend_queue_free(queue);
}

static void test_streams(void) {
    tensorlend_stream *stream;
    tensorlend_subscription *subscription;
    tensorlend_draft *draft;
    tensorlend_lease *lease;
    uint64_t number;
    FAILS(TENSORLEND_NOT_FOUND, "camera", tensorlend_subscribe(client, "camera", 0, 0, 0, &subscription));
    FAILS(TENSORLEND_TIMEOUT, "camera", tensorlend_subscribe(client, "camera", 0, 0, 1000000, &subscription));
    FAILS(TENSORLEND_ARGUMENT, "tensorlend_policy", tensorlend_stream_open(client, "camera", 0, 9, &stream));
    OK(tensorlend_stream_open(client, "camera", 2, TENSORLEND_POLICY_BLOCK, &stream));
    IS(tensorlend_stream_capacity(stream) == 2 && strcmp(tensorlend_stream_name(stream), "camera") == 0);
    FAILS(TENSORLEND_TIMEOUT, "subscribers", tensorlend_stream_wait_subscribers(stream, 1, 1000000));
    FAILS(TENSORLEND_ARGUMENT, "tensorlend_start", tensorlend_subscribe(client, "camera", 7, 0, 0, &subscription));
    FAILS(TENSORLEND_ARGUMENT, "flags", tensorlend_subscribe(client, "camera", 0, 2, 0, &subscription));
    OK(tensorlend_subscribe(client, "camera", TENSORLEND_START_NEXT, TENSORLEND_POLLABLE, -1, &subscription));
    OK(tensorlend_stream_wait_subscribers(stream, 1, -1));
    IS(tensorlend_stream_subscribers(stream) == 1);
    struct pollfd watched = {tensorlend_subscription_fd(subscription), POLLIN, 0};
    IS(watched.fd >= 0);
    OK(tensorlend_subscription_try_recv(subscription, &lease, &number));
    IS(lease == NULL);
    draft = numbers(1, 100);
    OK(tensorlend_stream_send(stream, &draft, -1, &number));
    IS(number == 0 && draft == NULL && poll(&watched, 1, 10000) == 1);
    OK(tensorlend_subscription_try_recv(subscription, &lease, &number));
    IS(number == 0 && first_of(lease) == 100);
    tensorlend_lease_free(lease);
    FAILS(TENSORLEND_TIMEOUT, "camera", tensorlend_subscription_recv(subscription, 1000000, &lease, NULL));
    IS(lease == NULL);

    draft = frame(30);
    OK(tensorlend_stream_send(stream, &draft, SECONDS(10), NULL));
    draft = numbers(1, 101);
    OK(tensorlend_stream_try_send(stream, &draft, &number));
    IS(number == 2 && tensorlend_stream_sent(stream) == 3);
    draft = numbers(1, 102);
    tensorlend_draft *same = draft;
    FAILS(TENSORLEND_FULL, "camera", tensorlend_stream_try_send(stream, &draft, &number));
    IS(draft == same && *(uint32_t *)tensorlend_draft_data(draft) == 102);
    FAILS(TENSORLEND_TIMEOUT, "camera", tensorlend_stream_send(stream, &draft, 1000000, NULL));
    IS(draft == NULL);
    FAILS(TENSORLEND_ARGUMENT, "message is NULL", tensorlend_stream_try_send(stream, &draft, &number));
    draft = frame(40);
    FAILS(TENSORLEND_FULL, "camera", tensorlend_stream_try_send(stream, &draft, &number));
    IS(draft != NULL);
    OK(tensorlend_subscription_recv(subscription, -1, &lease, &number));
    IS(number == 1 && tensorlend_lease_members(lease) == 2);
    tensorlend_lease_free(lease);
    OK(tensorlend_stream_try_send(stream, &draft, NULL));
    tensorlend_listing *listing;
    OK(tensorlend_list_streams(client, "cam*", &listing));
    IS(tensorlend_listing_count(listing) == 1 && tensorlend_listing_at(listing, 0)->count == 1);
    tensorlend_listing_free(listing);
    tensorlend_stream_close(stream);
    for (int i = 0; i < 2; i++) {
        OK(tensorlend_subscription_recv(subscription, SECONDS(10), &lease, NULL));
        tensorlend_lease_free(lease);
    }
    FAILS(TENSORLEND_STREAM_ENDED, "camera", tensorlend_subscription_recv(subscription, -1, &lease, NULL));
    IS(tensorlend_subscription_position(subscription) == 4 && tensorlend_subscription_lost(subscription) == 0);
    IS(strcmp(tensorlend_subscription_name(subscription), "camera") == 0);
    tensorlend_subscription_close(subscription);
    bool existed;
    OK(tensorlend_stream_delete(client, "camera", &existed));
    IS(existed);

    tensorlend_history *history;
    OK(tensorlend_keep(client, "pose", 2, &history));
    for (uint32_t i = 0; i < 3; i++) {
        draft = numbers(1, i);
        OK(tensorlend_history_publish(history, &draft, NULL));
    }
    tensorlend_leases *kept;
    OK(tensorlend_versions(client, "pose", &kept));
    IS(tensorlend_leases_count(kept) == 2 && first_of(tensorlend_leases_at(kept, 0)) == 1);
    tensorlend_leases_free(kept);
    tensorlend_history_close(history);
    OK(tensorlend_stream_delete(client, "pose", NULL));
    OK(tensorlend_delete(client, "pose", NULL));
}

static int number_of_deleted;

static void count_deleted(struct DLManagedTensorVersioned *tensor) {
    ++*(int *)tensor->context;
}

static void test_dlpack(void) {
    const uint64_t shape[] = {2, 2};
    tensorlend_draft *draft;
    struct DLManagedTensorVersioned *tensor, *second;
    OK(tensorlend_create(client, TENSORLEND_F32, 2, shape, &draft));
    OK(tensorlend_draft_to_dlpack(draft, &tensor));
    IS(tensor->version.major == 1 && tensor->flags == 0 && tensor->array.device.type == 1);
    IS(tensor->array.dtype.code == 2 && tensor->array.dtype.bits == 32 && tensor->array.dtype.lanes == 1);
    IS(tensor->array.ndim == 2 && tensor->array.shape[1] == 2 && tensor->array.strides[0] == 2);
    for (int i = 0; i < 4; i++)
        ((float *)tensor->array.data)[i] = (float)i;
    FAILS(TENSORLEND_ARGUMENT, "tensorlend_dlpack_free", tensorlend_publish(&draft, "matrix", NULL));
    IS(draft != NULL);
    tensorlend_dlpack_free(tensor);
    tensorlend_dlpack_free(NULL);
    OK(tensorlend_publish(&draft, "matrix", NULL));
    /* A draft may be freed before its DLPack tensor. */
    OK(tensorlend_create(client, TENSORLEND_F32, 2, shape, &draft));
    OK(tensorlend_draft_to_dlpack(draft, &tensor));
    tensorlend_draft_free(draft);
    ((float *)tensor->array.data)[3] = 1;
    tensor->deleter(tensor);

    tensorlend_lease *lease;
    OK(tensorlend_get(client, "matrix", &lease));
    OK(tensorlend_lease_to_dlpack(lease, NULL, &tensor));
    OK(tensorlend_lease_to_dlpack(lease, NULL, &second));
    FAILS(TENSORLEND_ARGUMENT, "no member", tensorlend_lease_to_dlpack(lease, "x", &(struct DLManagedTensorVersioned *){0}));
    tensorlend_lease_free(lease);
    second->deleter(second);
    OK(tensorlend_delete(client, "matrix", NULL));
    IS(tensor->flags == 1 && ((float *)tensor->array.data)[3] == 3);
    /* Imports tensors: unchanged, transposed, with an offset and negative strides. */
    OK(tensorlend_put_dlpack(client, "back", tensor, NULL));
    tensor->deleter(tensor);
    float values[] = {0, 1, 2, 3, 4, 5}, copy[6];
    int64_t sizes[] = {3, 2}, strides[] = {1, 3};
    struct DLManagedTensorVersioned ours = {{1, 3}, NULL, NULL, 0, {values, {1, 0}, 2, {2, 32, 1}, sizes, strides, 0}};
    tensorlend_version version;
    OK(tensorlend_put_dlpack(client, "back", &ours, &version));
    OK(tensorlend_get_into(client, "back", copy, sizeof copy, NULL));
    IS(copy[0] == 0 && copy[1] == 3 && copy[2] == 1 && copy[5] == 5);
    sizes[0] = 2, sizes[1] = 3, strides[0] = -3, strides[1] = 1, ours.array.byte_offset = 12;
    OK(tensorlend_create_from_dlpack(client, &ours, &draft));
    IS(((float *)tensorlend_draft_data(draft))[0] == 3 && ((float *)tensorlend_draft_data(draft))[5] == 2);
    tensorlend_draft_free(draft);
    ours.array.strides = NULL, ours.array.byte_offset = 0;
    OK(tensorlend_put_dlpack(client, "back", &ours, NULL));
    OK(tensorlend_get_into(client, "back", copy, sizeof copy, NULL));
    IS(copy[1] == 1 && copy[5] == 5);
    /* No elements with NULL data, and elements with NULL data. */
    sizes[0] = 0, ours.array.data = NULL;
    OK(tensorlend_put_dlpack(client, "back", &ours, NULL));
    sizes[0] = 2, ours.array.byte_offset = 4096;
    FAILS(TENSORLEND_ARGUMENT, "data is NULL", tensorlend_put_dlpack(client, "back", &ours, NULL));
    ours.array.strides = strides, ours.array.byte_offset = 0;
    FAILS(TENSORLEND_ARGUMENT, "data is NULL", tensorlend_put_dlpack(client, "back", &ours, NULL));
    FAILS(TENSORLEND_ARGUMENT, "data is NULL, and its elements have 24 bytes: point data to them",
          tensorlend_create_from_dlpack(client, &ours, &draft));
    int64_t many[] = {INT64_C(1) << 40, 0, INT64_C(1) << 40}, steps[] = {7, INT64_C(1) << 40, 1};
    ours.array.ndim = 3, ours.array.shape = many, ours.array.strides = steps;
    OK(tensorlend_create_from_dlpack(client, &ours, &draft));
    IS(tensorlend_draft_bytes(draft) == 0);
    tensorlend_draft_free(draft);
    ours.array.ndim = 2, ours.array.shape = sizes, ours.array.strides = NULL;
    ours.array.data = values, sizes[0] = -2;
    FAILS(TENSORLEND_ARGUMENT, "below 0", tensorlend_put_dlpack(client, "back", &ours, NULL));
    sizes[0] = INT64_MAX;
    FAILS(TENSORLEND_ARGUMENT, "", tensorlend_put_dlpack(client, "back", &ours, NULL));
    sizes[0] = 2, ours.array.strides = strides, strides[0] = INT64_MAX;
    FAILS(TENSORLEND_ARGUMENT, "lead out of memory: give the strides", tensorlend_put_dlpack(client, "back", &ours, NULL));
    strides[0] = 3, ours.array.ndim = 17;
    FAILS(TENSORLEND_ARGUMENT, "the tensor has 17 dimensions: give 0 to 16", tensorlend_put_dlpack(client, "back", &ours, NULL));
    ours.array.ndim = 2, ours.array.device.type = 2;
    FAILS(TENSORLEND_ARGUMENT, "device", tensorlend_put_dlpack(client, "back", &ours, NULL));
    ours.array.device.type = 1, ours.array.dtype.lanes = 4;
    FAILS(TENSORLEND_DTYPE, "4 lanes", tensorlend_put_dlpack(client, "back", &ours, NULL));
    ours.array.dtype.lanes = 1, ours.version.major = 2;
    FAILS(TENSORLEND_ARGUMENT, "DLPack 2", tensorlend_put_dlpack(client, "back", &ours, NULL));
    /* Of a tensor of another version, only the version is read: the rest may be missing. */
    struct DLManagedTensorVersioned *other = malloc(sizeof ours.version);
    other->version.major = 7;
    FAILS(TENSORLEND_ARGUMENT, "DLPack 7", tensorlend_put_dlpack(client, "back", other, NULL));
    free(other);
    /* A tensor ends by its deleter, whatever library made it; some have none. */
    ours.context = &number_of_deleted, ours.deleter = count_deleted;
    tensorlend_dlpack_free(&ours);
    IS(number_of_deleted == 1);
    ours.deleter = NULL;
    tensorlend_dlpack_free(&ours);
    OK(tensorlend_delete(client, "back", NULL));
    draft = frame(1);
    FAILS(TENSORLEND_ARGUMENT, "members", tensorlend_draft_to_dlpack(draft, &tensor));
    OK(tensorlend_publish(&draft, "frame", NULL));
    OK(tensorlend_get_dataset(client, "frame", &lease));
    OK(tensorlend_lease_to_dlpack(lease, "right", &tensor));
    tensorlend_lease_free(lease);
    IS(((uint32_t *)tensor->array.data)[1] == 12 && tensor->array.dtype.code == 1);
    tensor->deleter(tensor);
    OK(tensorlend_delete(client, "frame", NULL));
}

/* Returns the number of the library's threads. They block all signals except those of their own faults. */
static int its_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int found = 0;
    IS(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300], line[200], name[100] = "";
        uint64_t blocked = 0;
        if (!isdigit((unsigned char)task->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue; /* it ended */
        while (fgets(line, sizeof line, file) != NULL) {
            sscanf(line, "Name: %99s", name);
            sscanf(line, "SigBlk: %" SCNx64, &blocked);
        }
        fclose(file);
        if (strncmp(name, "tensorlend-", 11) != 0)
            continue;
        const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGUSR2, SIGIO, SIGPROF};
        for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
            IS(blocked >> (signals[i] - 1) & 1);
        IS(!(blocked >> (SIGSEGV - 1) & 1));
        found++;
    }
    closedir(tasks);
    return found;
}

static void test_memory(void) {
    uint64_t slots, segments, leased = 1;
    tensorlend_statistics counted;
    OK(tensorlend_statistics_enable(client, true));
    OK(tensorlend_statistics_get(client, &counted));
    IS(counted.total_count == 0);
    tensorlend_draft *draft = numbers(1024, 0);
    OK(tensorlend_statistics_get(client, &counted));
    IS(counted.current_bytes == 4096 && counted.total_count == 1);
    OK(tensorlend_memory(client, &slots, &segments));
    IS(slots >= 4096 && segments >= slots);
    OK(tensorlend_leased_bytes(client, &leased));
    IS(leased == 0);
    tensorlend_draft_free(draft);
    OK(tensorlend_statistics_enable(client, false));
    char log[] = "/tmp/tensorlend-log-XXXXXX";
    IS(close(mkstemp(log)) == 0);
    OK(tensorlend_log_start(client, log));
    tensorlend_draft_free(numbers(1024, 0));
    /* The thread that waits for the daemon, and the log's, which sets its name when it starts. */
    for (int i = 0; i < 1000 && its_threads() < 2; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    IS(its_threads() >= 2);
    OK(tensorlend_log_stop(client));
    FILE *file = fopen(log, "r");
    char text[4096];
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    IS(fclose(file) == 0 && unlink(log) == 0 && strstr(text, "4096") != NULL);
}

/* NULL for each argument in turn: an error that names it, never a crash. */
static void test_nothing(void) {
    tensorlend_draft *draft = NULL, *none = NULL;
    tensorlend_lease *lease;
    const uint64_t size = 1;
    FAILS(TENSORLEND_ARGUMENT, "client is NULL: pass a valid pointer; a call", tensorlend_connect(NULL, NULL));
    FAILS(TENSORLEND_ARGUMENT, "client is NULL", tensorlend_get(NULL, "n", &lease));
    FAILS(TENSORLEND_ARGUMENT, "name is NULL", tensorlend_get(client, NULL, &lease));
    FAILS(TENSORLEND_ARGUMENT, "lease is NULL", tensorlend_get(client, "n", NULL));
    FAILS(TENSORLEND_ARGUMENT, "UTF-8", tensorlend_get(client, "\xff", &lease));
    FAILS(TENSORLEND_ARGUMENT, "name \"\"", tensorlend_get(client, "", &lease));
    FAILS(TENSORLEND_ARGUMENT, "shape is NULL", tensorlend_create(client, TENSORLEND_U8, 1, NULL, &draft));
    const uint32_t counts[] = {17, UINT32_MAX};
    const int64_t stride = 1;
    for (int i = 0; i < 2; i++) {
        FAILS(TENSORLEND_ARGUMENT, "dimensions are too many: give 0 to 16", tensorlend_create(client, TENSORLEND_U8, counts[i], &size, &draft));
        FAILS(TENSORLEND_ARGUMENT, "0 to 16",
              tensorlend_create_strided(client, TENSORLEND_U8, counts[i], &size, &stride, 0, &draft));
        FAILS(TENSORLEND_ARGUMENT, "0 to 16",
              tensorlend_put(client, "n", TENSORLEND_U8, counts[i], &size, &size, NULL));
    }
    FAILS(TENSORLEND_ARGUMENT, "bytes is NULL", tensorlend_leased_bytes(client, NULL));
    FAILS(TENSORLEND_ARGUMENT, "statistics is NULL", tensorlend_statistics_get(client, NULL));
    FAILS(TENSORLEND_ARGUMENT, "exists is NULL", tensorlend_exists(client, "n", NULL));
    FAILS(TENSORLEND_ARGUMENT, "version is NULL", tensorlend_current_version(client, "n", NULL));
    FAILS(TENSORLEND_ARGUMENT, "length is NULL", tensorlend_list_length(client, "n", NULL));
    tensorlend_listing *listing;
    tensorlend_leases *leases;
    FAILS(TENSORLEND_ARGUMENT, "glob is NULL", tensorlend_list_names(client, NULL, &listing));
    FAILS(TENSORLEND_ARGUMENT, "list is NULL", tensorlend_list_get_range(client, NULL, 0, 1, &leases));
    FAILS(TENSORLEND_ARGUMENT, "from is NULL", tensorlend_rename(client, NULL, "n"));
    OK(tensorlend_memory(client, NULL, NULL));
    FAILS(TENSORLEND_DTYPE, "0 bits", tensorlend_create(client, 0, 1, &size, &draft));
    FAILS(TENSORLEND_ARGUMENT, "data is NULL", tensorlend_put(client, "n", TENSORLEND_U8, 1, &size, NULL, NULL));
    FAILS(TENSORLEND_ARGUMENT, "draft is NULL", tensorlend_publish(&none, "n", NULL));
    FAILS(TENSORLEND_ARGUMENT, "draft is NULL", tensorlend_publish(NULL, "n", NULL));
    FAILS(TENSORLEND_ARGUMENT, "tensor is NULL", tensorlend_put_dlpack(client, "n", NULL, NULL));
    FAILS(TENSORLEND_ARGUMENT, "member is NULL", tensorlend_dataset_add(draft = frame(1), "n", NULL));
    FAILS(TENSORLEND_ARGUMENT, "flags", tensorlend_publish_for(&draft, "n", 0, 8, NULL));
    FAILS(TENSORLEND_ARGUMENT, "stream is NULL", tensorlend_stream_send(NULL, &draft, 0, NULL));
    FAILS(TENSORLEND_ARGUMENT, "metadata is NULL", tensorlend_draft_set_metadata(draft, NULL, 3));
    FAILS(TENSORLEND_ARGUMENT, "at most", tensorlend_draft_set_metadata(draft, &client, UINT64_MAX / 2));
    FAILS(TENSORLEND_ARGUMENT, "subscription is NULL", tensorlend_subscription_recv(NULL, 0, &lease, NULL));
    IS(draft != NULL);
    IS(tensorlend_draft_dtype(draft) == 0 && tensorlend_draft_dtype(NULL) == 0);
    tensorlend_draft_free(draft);
    tensorlend_draft_free(NULL);
    tensorlend_lease_free(NULL);
    tensorlend_leases_free(NULL);
    tensorlend_listing_free(NULL);
    tensorlend_options_free(NULL);
    tensorlend_client_free(NULL);
    tensorlend_stat_free(NULL);
    tensorlend_stream_close(NULL);
    tensorlend_subscription_close(NULL);
    tensorlend_history_close(NULL);
    IS(tensorlend_lease_tensor(NULL) == NULL && tensorlend_lease_metadata(NULL, NULL) == NULL);
    IS(tensorlend_lease_member(NULL, 0) == NULL && tensorlend_lease_find(NULL, "x") == NULL);
    IS(!tensorlend_lease_validate(NULL) && tensorlend_draft_data(NULL) == NULL);
    IS(tensorlend_subscription_fd(NULL) == -1 && tensorlend_listing_at(NULL, 0) == NULL);
    IS(tensorlend_stream_sent(NULL) == 0 && tensorlend_client_namespace(NULL) == NULL);
    IS(strcmp(tensorlend_status_name(TENSORLEND_FULL), "stream full") == 0);
    IS(strcmp(tensorlend_status_name(99), "unknown") == 0 && strcmp(tensorlend_limit_name(0), "unknown") == 0);
    IS(strcmp(tensorlend_dtype_name(TENSORLEND_BF16), "bf16") == 0);
    IS(tensorlend_dtype_bytes(TENSORLEND_C128) == 16 && tensorlend_dtype_bytes(7) == 0);
}

static void *in_another_thread(void *lease) {
    IS(strlen(tensorlend_error_message()) == 0);
    tensorlend_lease *other;
    FAILS(TENSORLEND_NOT_FOUND, "theirs", tensorlend_get(client, "theirs", &other));
    IS(first_of(lease) == 3);
    tensorlend_lease_free(lease);
    return NULL;
}

static void test_threads(void) {
    tensorlend_draft *draft = numbers(1, 3);
    OK(tensorlend_publish(&draft, "shared", NULL));
    tensorlend_lease *lease, *other;
    OK(tensorlend_get(client, "shared", &lease));
    FAILS(TENSORLEND_NOT_FOUND, "ours", tensorlend_get(client, "ours", &other));
    pthread_t thread;
    IS(pthread_create(&thread, NULL, in_another_thread, lease) == 0 && pthread_join(thread, NULL) == 0);
    IS(strstr(tensorlend_error_message(), "ours") != NULL);
}

static void test_fork(void) {
    tensorlend_draft *draft = numbers(1, 3);
    tensorlend_draft *dataset, *second;
    tensorlend_stream *stream;
    OK(tensorlend_create_dataset(client, &dataset));
    OK(tensorlend_stream_open(client, "forked", 2, TENSORLEND_POLICY_BLOCK, &stream));
    tensorlend_lease *lease, *other;
    OK(tensorlend_get(client, "shared", &lease));
    pid_t child = fork();
    IS(child >= 0);
    if (child == 0) {
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_get(client, "shared", &other));
        struct DLManagedTensorVersioned *view;
        uint64_t count;
        bool is;
        tensorlend_version version;
        tensorlend_statistics counted;
        tensorlend_outstanding *outstanding;
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_draft_to_dlpack(draft, &view));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_draft_set_metadata(draft, "m", 1));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_draft_set_metadata(dataset, "m", 1));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_draft_set_timestamp(draft, 1));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_dataset_add(dataset, "x", &draft));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_create_dataset(client, &second));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_list_length(client, "list", &count));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_list_append(client, "list", &dataset, &count));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_memory(client, &count, NULL));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_leased_bytes(client, &count));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_statistics_get(client, &counted));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_statistics_enable(client, true));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_outstanding_get(client, &outstanding));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_exists(client, "shared", &is));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_current_version(client, "shared", &version));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_stream_try_send(stream, &draft, NULL));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_stream_wait_subscribers(stream, 1, -1));
        IS(tensorlend_stream_sent(stream) == 0 && tensorlend_stream_subscribers(stream) == 0);
        IS(draft != NULL);
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_publish(&draft, "shared", NULL));
        /* The child reads under its parent's lease. */
        IS(tensorlend_lease_validate(lease) && first_of(lease) == 3);
        uint32_t copy;
        OK(tensorlend_lease_copy(lease, NULL, &copy, sizeof copy));
        IS(copy == 3);
        tensorlend_lease_free(lease);
        tensorlend_client_free(client);
        /* Without exec, the leak checkers would count memory that the parent's threads held. */
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    IS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    IS(first_of(lease) == 3 && *(uint32_t *)tensorlend_draft_data(draft) == 3);
    OK(tensorlend_stream_try_send(stream, &dataset, NULL));
    IS(tensorlend_stream_sent(stream) == 1);
    tensorlend_stream_close(stream);
    OK(tensorlend_stream_delete(client, "forked", NULL));
    tensorlend_lease_free(lease);
    tensorlend_draft_free(draft);
    OK(tensorlend_delete(client, "shared", NULL));
}

int main(void) {
    test_connecting();
    test_names();
    test_strides();
    test_datasets();
    test_listing();
    test_lists();
    test_queues();
    test_streams();
    test_dlpack();
    test_memory();
    test_pressure();
    test_nothing();
    test_threads();
    test_fork();
    tensorlend_client_free(client);
    puts("all is well");
    return 0;
}
