/* Requests, models and names of other machines. A thread of this program is the server, the runner and the gateway. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static tensorlend_client *client;

static tensorlend_draft *number(tensorlend_client *of, uint32_t value) {
    tensorlend_draft *draft;
    OK(tensorlend_create(of, TENSORLEND_U32, 0, NULL, &draft));
    *(uint32_t *)tensorlend_draft_data(draft) = value;
    return draft;
}

static uint32_t value(const tensorlend_lease *lease) {
    return *(const uint32_t *)tensorlend_lease_tensor(lease)->data;
}

/* A server with a client of its own, which ends after a request for 0. It doubles numbers, refuses 13, drops 14, and
 * responds to two requests at a time in the wrong order if the first is 20. */
static void *serve(void *service) {
    tensorlend_client *own;
    tensorlend_server *server;
    tensorlend_request *request, *second;
    OK(tensorlend_connect(NULL, &own));
    OK(tensorlend_serve(own, service, &server));
    IS(strcmp(tensorlend_server_service(server), service) == 0);
    for (uint32_t asked = 1; asked != 0;) {
        OK(tensorlend_server_recv(server, -1, &request));
        const tensorlend_lease *lease = tensorlend_request_value(request);
        asked = value(lease);
        IS(tensorlend_server_callers(server) >= 1);
        if (asked == 13) {
            FAILS(TENSORLEND_ARGUMENT, "why is NULL", tensorlend_request_fail(&request, NULL));
            OK(tensorlend_request_fail(&request, "an unlucky number"));
        } else if (asked == 14) {
            tensorlend_request_free(request);
            request = NULL;
        } else if (asked == 20) {
            OK(tensorlend_server_recv(server, -1, &second));
            tensorlend_draft *response = number(own, 2 * value(tensorlend_request_value(second)));
            OK(tensorlend_request_respond(&second, &response));
            response = number(own, 2 * asked);
            OK(tensorlend_request_soon(request));
            OK(tensorlend_request_respond(&request, &response));
            IS(response == NULL);
        } else {
            tensorlend_draft *response = NULL;
            tensorlend_lease *kept;
            OK(tensorlend_lease_clone(lease, &kept));
            FAILS(TENSORLEND_ARGUMENT, "response is NULL", tensorlend_request_respond(&request, &response));
            FAILS(TENSORLEND_ARGUMENT, "response is NULL", tensorlend_request_respond(&request, NULL));
            IS(request != NULL);
            response = number(own, 2 * asked);
            OK(tensorlend_request_respond(&request, &response));
            IS(value(kept) == asked && tensorlend_lease_validate(kept));
            tensorlend_lease_free(kept);
        }
        IS(request == NULL);
    }
    OK(tensorlend_server_try_recv(server, &request));
    IS(request == NULL);
    tensorlend_server_close(server);
    tensorlend_client_free(own);
    return NULL;
}

static void test_requests(void) {
    pthread_t thread;
    tensorlend_caller *caller;
    tensorlend_lease *response;
    uint64_t of = 99;
    OK(tensorlend_caller_open(client, "double", 2, &caller));
    IS(strcmp(tensorlend_caller_service(caller), "double") == 0 && tensorlend_caller_outstanding(caller) == 0);
    FAILS(TENSORLEND_TIMEOUT, "double", tensorlend_caller_wait_server(caller, 1000000));
    tensorlend_draft *request = number(client, 21);
    FAILS(TENSORLEND_TIMEOUT, "double", tensorlend_caller_call(caller, &request, 1000000, &response));
    IS(request == NULL && response == NULL);

    IS(pthread_create(&thread, NULL, serve, "double") == 0);
    OK(tensorlend_caller_wait_server(caller, -1));
    request = number(client, 21);
    OK(tensorlend_caller_call(caller, &request, -1, &response));
    IS(request == NULL && value(response) == 42);
    tensorlend_lease_free(response);
    request = number(client, 13);
    FAILS(TENSORLEND_REQUEST_FAILED, "an unlucky number", tensorlend_caller_call(caller, &request, -1, &response));
    IS(response == NULL);
    request = number(client, 14);
    FAILS(TENSORLEND_REQUEST_FAILED, "dropped", tensorlend_caller_call(caller, &request, -1, &response));

    /* Several at once: responses come in the order of the requests. */
    request = number(client, 20);
    OK(tensorlend_caller_send(caller, &request, -1, &of));
    const uint64_t first = of;
    request = number(client, 22);
    OK(tensorlend_caller_send(caller, &request, -1, &of));
    IS(of == first + 1 && tensorlend_caller_outstanding(caller) == 2);
    request = number(client, 1);
    FAILS(TENSORLEND_ARGUMENT, "which is the caller's capacity", tensorlend_caller_send(caller, &request, -1, &of));
    request = number(client, 1);
    FAILS(TENSORLEND_ARGUMENT, "have no response yet", tensorlend_caller_call(caller, &request, -1, &response));
    OK(tensorlend_caller_recv(caller, -1, &response, &of));
    IS(of == first && value(response) == 40);
    tensorlend_lease_free(response);
    OK(tensorlend_caller_recv(caller, -1, &response, NULL));
    IS(value(response) == 44);
    tensorlend_lease_free(response);
    FAILS(TENSORLEND_ARGUMENT, "send one first", tensorlend_caller_recv(caller, 0, &response, &of));

    /* In the child of a fork, the handles are the parent's. */
    pid_t child = fork();
    IS(child >= 0);
    if (child == 0) {
        tensorlend_draft *none = NULL;
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_caller_call(caller, &none, 0, &response));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_caller_recv(caller, 0, &response, NULL));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_caller_give_up(caller));
        FAILS(TENSORLEND_FORKED, "fork", tensorlend_caller_open(client, "double", 0, &caller));
        IS(caller == NULL && tensorlend_caller_outstanding(NULL) == 0);
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    IS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    request = number(client, 0);
    OK(tensorlend_caller_call(caller, &request, -1, &response));
    IS(value(response) == 0);
    IS(pthread_join(thread, NULL) == 0);
    /* A response outlives its server and its caller. */
    OK(tensorlend_caller_give_up(caller));
    tensorlend_caller_close(caller);
    IS(value(response) == 0);
    tensorlend_lease_free(response);
}

/* A server that ends while it has a request. */
static void *end_early(void *unused) {
    tensorlend_client *own;
    tensorlend_server *server;
    tensorlend_request *request;
    (void)unused;
    OK(tensorlend_connect(NULL, &own));
    OK(tensorlend_serve(own, "short", &server));
    OK(tensorlend_server_recv(server, -1, &request));
    tensorlend_server_close(server);
    /* The right to respond outlives the server's handle, and leads nowhere. */
    tensorlend_draft *response = number(own, 1);
    OK(tensorlend_request_respond(&request, &response));
    tensorlend_client_free(own);
    return NULL;
}

static void test_gone(void) {
    pthread_t thread;
    tensorlend_caller *caller;
    tensorlend_lease *response;
    tensorlend_draft *request = number(client, 1);
    OK(tensorlend_caller_open(client, "short", 0, &caller));
    IS(pthread_create(&thread, NULL, end_early, NULL) == 0);
    FAILS(TENSORLEND_SERVER_GONE, "short", tensorlend_caller_call(caller, &request, -1, &response));
    IS(strcmp(tensorlend_status_name(TENSORLEND_SERVER_GONE), "server gone") == 0);
    tensorlend_caller_close(caller);
    IS(pthread_join(thread, NULL) == 0);
}

/* A runner: responds with the input "x" as the output "y", and as published the second time. */
static void *run(void *unused) {
    static const char *const metadata[] = {
        "{\"v\":1,\"queue_us\":1.5,\"run_us\":250}",
        "{\"v\":1,\"queue_us\":1.5,\"run_us\":250,\"published\":[\"y\"]}",
    };
    tensorlend_client *own;
    tensorlend_server *server;
    (void)unused;
    OK(tensorlend_connect(NULL, &own));
    OK(tensorlend_serve(own, "model/echo", &server));
    for (int turn = 0; turn < 2; turn++) {
        tensorlend_request *request;
        tensorlend_draft *response, *member;
        const uint64_t words[] = {1, 2};
        OK(tensorlend_server_recv(server, -1, &request));
        const tensorlend_lease *asked = tensorlend_request_value(request);
        uint64_t bytes;
        const char *document = tensorlend_lease_metadata(asked, &bytes);
        OK(tensorlend_create_dataset(own, &response));
        if (turn == 0) {
            IS(bytes > 0 && strncmp(document, "{\"v\":1,\"outputs\":{\"y\":null}", 27) == 0);
            member = number(own, *(const uint32_t *)tensorlend_lease_find(asked, "x")->data);
            OK(tensorlend_dataset_add(response, "y", &member));
        } else {
            IS(tensorlend_lease_members(asked) == 0 && bytes > 0);
            const uint64_t shape[] = {1, 2};
            OK(tensorlend_create(own, TENSORLEND_U64, 2, shape, &member));
            memcpy(tensorlend_draft_data(member), words, sizeof words);
            OK(tensorlend_dataset_add(response, ".versions", &member));
        }
        OK(tensorlend_draft_set_metadata(response, metadata[turn], strlen(metadata[turn])));
        OK(tensorlend_request_respond(&request, &response));
    }
    tensorlend_server_close(server);
    tensorlend_client_free(own);
    return NULL;
}

static void test_models(void) {
    pthread_t thread;
    tensorlend_version version, zeros = {{0, 0}};
    tensorlend_model *model;
    tensorlend_model_request *request;
    tensorlend_lease *lease;
    tensorlend_listing *listing;
    bool existed;
    OK(tensorlend_model_open(client, "echo", &model));
    IS(strcmp(tensorlend_model_name(model), "echo") == 0);
    OK(tensorlend_model_request_new(&request));
    FAILS(TENSORLEND_NOT_FOUND, "echo", tensorlend_model_run(model, &request, -1, &lease));
    IS(request == NULL && lease == NULL);
    FAILS(TENSORLEND_ARGUMENT, "request is NULL", tensorlend_model_run(model, &request, -1, &lease));
    FAILS(TENSORLEND_ARGUMENT, "request is NULL", tensorlend_model_run(model, NULL, -1, &lease));
    FAILS(TENSORLEND_ARGUMENT, "batchmax", tensorlend_model_put(client, "echo", "onnx", 4, "{\"batchmax\":2}", NULL));
    FAILS(TENSORLEND_ARGUMENT, "no bytes", tensorlend_model_put(client, "echo", NULL, 0, NULL, NULL));
    FAILS(TENSORLEND_ARGUMENT, "onnx is NULL", tensorlend_model_put(client, "echo", NULL, 4, NULL, NULL));
    OK(tensorlend_model_put(client, "echo", "onnx", 4, "{\"batch_max\":2}", &version));
    OK(tensorlend_model_get(client, "echo", &lease));
    IS(memcmp(tensorlend_lease_tensor(lease)->data, "onnx", 4) == 0);
    IS(tensorlend_version_equal(tensorlend_lease_version(lease), version));
    tensorlend_lease_free(lease);
    OK(tensorlend_list_models(client, "*", &listing));
    IS(tensorlend_listing_count(listing) == 1 && !tensorlend_listing_is_cut(listing));
    const tensorlend_entry *entry = tensorlend_listing_at(listing, 0);
    IS(strcmp(entry->name, "echo") == 0 && entry->nbytes == 4 && entry->kind == TENSORLEND_KIND_MODEL);
    IS(tensorlend_version_equal(entry->version, version) && entry->tensors == NULL);
    tensorlend_listing_free(listing);
    OK(tensorlend_model_request_new(&request));
    FAILS(TENSORLEND_TIMEOUT, "runner", tensorlend_model_run(model, &request, 1000000, &lease));

    IS(pthread_create(&thread, NULL, run, NULL) == 0);
    OK(tensorlend_model_request_new(&request));
    tensorlend_draft *input = number(client, 5), *dataset;
    FAILS(TENSORLEND_ARGUMENT, "blur", tensorlend_model_request_prepare(request, "x", "[\"blur\"]"));
    OK(tensorlend_create_dataset(client, &dataset));
    FAILS(TENSORLEND_ARGUMENT, "host memory", tensorlend_model_request_input(request, "x", &dataset));
    IS(dataset != NULL);
    tensorlend_draft_free(dataset);
    OK(tensorlend_model_request_input(request, "x", &input));
    IS(input == NULL);
    FAILS(TENSORLEND_ARGUMENT, "tensor is NULL", tensorlend_model_request_input(request, "x", &input));
    OK(tensorlend_model_request_output(request, "y", NULL));
    OK(tensorlend_model_run(model, &request, -1, &lease));
    IS(request == NULL && *(const uint32_t *)tensorlend_lease_find(lease, "y")->data == 5);
    uint64_t queue_ns, run_ns;
    OK(tensorlend_model_times(lease, &queue_ns, &run_ns));
    IS(queue_ns == 1500 && run_ns == 250000);
    OK(tensorlend_model_published(lease, "y", &version));
    IS(tensorlend_version_equal(version, zeros));
    tensorlend_lease_free(lease);

    OK(tensorlend_model_request_new(&request));
    OK(tensorlend_model_request_input_from(request, "x", "image"));
    OK(tensorlend_model_request_prepare(request, "x", "[{\"scale\": 0.5}, \"chw\"]"));
    OK(tensorlend_model_request_output(request, "y", "classes"));
    OK(tensorlend_model_run(model, &request, -1, &lease));
    OK(tensorlend_model_published(lease, "y", &version));
    IS(version.opaque[0] == 1 && version.opaque[1] == 2);
    tensorlend_lease_free(lease);
    IS(pthread_join(thread, NULL) == 0);

    OK(tensorlend_model_get(client, "echo", &lease));
    FAILS(TENSORLEND_ARGUMENT, "a tensor", tensorlend_model_times(lease, NULL, NULL));
    tensorlend_lease_free(lease);
    OK(tensorlend_model_request_new(&request));
    tensorlend_model_request_free(request);
    tensorlend_model_close(model);
    OK(tensorlend_model_delete(client, "echo", &existed));
    IS(existed);
}

/* A gateway to the machine "node7": takes puts, has one list, and knows where names are. It ends with the first request
 * for the machine "end". */
static void *gateway(void *own) {
    tensorlend_server *server;
    bool ends = false;
    OK(tensorlend_serve(own, ".gateway", &server));
    while (!ends) {
        tensorlend_request *request;
        OK(tensorlend_server_recv(server, -1, &request));
        const tensorlend_lease *asked = tensorlend_request_value(request);
        uint64_t bytes;
        char document[512] = "";
        const void *metadata = tensorlend_lease_metadata(asked, &bytes);
        IS(bytes < sizeof document);
        memcpy(document, metadata, bytes);
        const char *said = "{\"v\":1,\"answer\":\"here\",\"stale\":false}", *elements = "";
        if (strstr(document, "\"op\":\"put\"") != NULL) {
            const bool several = strstr(document, "\"dataset\":true") != NULL;
            const tensorlend_tensor *sent = tensorlend_lease_find(asked, several ? "value/left" : "value");
            IS(sent != NULL && ((const float *)sent->data)[1] == 2.5f);
            if (strstr(document, "node7/secret") != NULL)
                said = "{\"v\":1,\"answer\":\"refused\",\"why\":\"not for you\"}";
        } else if (strstr(document, "\"op\":\"list\"") != NULL) {
            tensorlend_draft *item = number(own, 7);
            OK(tensorlend_list_append(own, "node7/list", &item, NULL));
        } else if (strstr(document, "\"op\":\"names\"") != NULL) {
            said = "{\"v\":1,\"answer\":\"names\"}";
            elements = "{\"v\":1,\"names\":[{\"name\":\"node7/a\",\"kind\":\"tensor\",\"dtype\":\"f32\",\"shape\":[2,3],"
                       "\"size\":24,\"cached\":true,\"stale\":false},{\"name\":\"node7/b\",\"kind\":\"stream\",\"dtype\":\"\","
                       "\"shape\":[],\"size\":4,\"cached\":false,\"stale\":true},{\"name\":\"node7/c\",\"kind\":\"tensor\","
                       "\"dtype\":\"f1\",\"shape\":[2],\"size\":1,\"cached\":false,\"stale\":false}],"
                       "\"silent\":[\"lost\"],\"more\":true}";
        } else if (strstr(document, "\"op\":\"where\"") != NULL) {
            ends = strstr(document, "node7/end") != NULL;
            said = "{\"v\":1,\"answer\":\"where\",\"node\":\"node7\",\"alive\":true,\"cached\":false,\"stale\":false,"
                   "\"stamp\":\"\"}";
        }
        tensorlend_draft *response;
        const uint64_t size = strlen(elements);
        OK(tensorlend_create(own, TENSORLEND_U8, 1, &size, &response));
        memcpy(tensorlend_draft_data(response), elements, size);
        OK(tensorlend_draft_set_metadata(response, said, strlen(said)));
        OK(tensorlend_request_respond(&request, &response));
    }
    tensorlend_server_close(server);
    return NULL;
}

static void say_node(tensorlend_client *own, const char *node, const char *state) {
    char name[64], document[200];
    snprintf(name, sizeof name, ".gateway/node/%s", node);
    snprintf(document, sizeof document, "{\"v\":1,\"node\":\"%s\",\"epoch\":\"0000000000000000\",%s}", node, state);
    const uint64_t size = strlen(document);
    OK(tensorlend_put(own, name, TENSORLEND_U8, 1, &size, document, NULL));
}

static void test_remote(void) {
    pthread_t thread;
    tensorlend_listing *listing;
    tensorlend_client *own;
    const float values[] = {1.5f, 2.5f};
    const uint64_t two = 2;
    uint64_t length = 0;
    OK(tensorlend_list_nodes(client, &listing));
    IS(tensorlend_listing_count(listing) == 0);
    tensorlend_listing_free(listing);
    FAILS(TENSORLEND_REMOTE, "node7", tensorlend_put_remote(client, "node7/x", TENSORLEND_F32, 1, &two, values));
    FAILS(TENSORLEND_REMOTE, "gateway", tensorlend_list_remote_names(client, "*", &listing));
    FAILS(TENSORLEND_REMOTE, "gateway", tensorlend_list_remote(client, "*", &listing)); /* the other name */

    OK(tensorlend_connect(NULL, &own));
    say_node(own, "home", "\"alive\":true,\"here\":true");
    say_node(own, "lost", "\"alive\":false,\"here\":false");
    say_node(own, "node7", "\"alive\":true,\"here\":false");
    IS(pthread_create(&thread, NULL, gateway, own) == 0);
    OK(tensorlend_list_nodes(client, &listing));
    IS(tensorlend_listing_count(listing) == 3);
    const tensorlend_entry *entry = tensorlend_listing_at(listing, 0);
    IS(strcmp(entry->name, "home") == 0 && entry->kind == TENSORLEND_KIND_NODE && entry->here && entry->alive);
    entry = tensorlend_listing_at(listing, 1);
    IS(strcmp(entry->name, "lost") == 0 && !entry->here && !entry->alive);
    tensorlend_listing_free(listing);

    OK(tensorlend_put_remote(client, "node7/x", TENSORLEND_F32, 1, &two, values));
    FAILS(TENSORLEND_REMOTE, "not for you",
          tensorlend_put_remote(client, "node7/secret", TENSORLEND_F32, 1, &two, values));
    FAILS(TENSORLEND_ARGUMENT, "data is NULL", tensorlend_put_remote(client, "node7/x", TENSORLEND_F32, 1, &two, NULL));
    tensorlend_draft *dataset, *left;
    OK(tensorlend_create(client, TENSORLEND_F32, 1, &two, &left));
    memcpy(tensorlend_draft_data(left), values, sizeof values);
    OK(tensorlend_create_dataset(client, &dataset));
    OK(tensorlend_dataset_add(dataset, "left", &left));
    OK(tensorlend_publish_remote(client, &dataset, "node7/pair"));
    IS(dataset == NULL);
    FAILS(TENSORLEND_ARGUMENT, "draft is NULL", tensorlend_publish_remote(client, &dataset, "node7/pair"));
    /* A name that begins with this machine is a name of this machine. */
    OK(tensorlend_put_remote(client, "home/here", TENSORLEND_F32, 1, &two, values));
    bool is = false;
    OK(tensorlend_delete(client, "here", &is));
    IS(is);

    OK(tensorlend_fetch_list(client, "node7/list", &length));
    IS(length == 1);
    OK(tensorlend_list_clear(client, "node7/list", NULL));
    OK(tensorlend_list_remote_names(client, "*", &listing));
    IS(tensorlend_listing_count(listing) == 4 && tensorlend_listing_is_cut(listing));
    entry = tensorlend_listing_at(listing, 0);
    IS(strcmp(entry->name, "node7/a") == 0 && entry->kind == TENSORLEND_KIND_TENSOR && entry->count == 1);
    IS(entry->tensors[0]->ndim == 2 && entry->tensors[0]->strides[0] == 3 && entry->tensors[0]->data == NULL);
    IS(entry->nbytes == 24 && entry->cached && !entry->stale && entry->alive);
    entry = tensorlend_listing_at(listing, 1);
    IS(entry->kind == TENSORLEND_KIND_STREAM && entry->count == 4 && entry->stale && !entry->cached);
    entry = tensorlend_listing_at(listing, 2);
    IS(entry->kind == TENSORLEND_KIND_TENSOR && entry->count == 0 && entry->tensors == NULL && entry->nbytes == 1);
    entry = tensorlend_listing_at(listing, 3);
    IS(strcmp(entry->name, "lost") == 0 && entry->kind == TENSORLEND_KIND_NODE && !entry->alive);
    tensorlend_listing_free(listing);
    OK(tensorlend_placement(client, "here", &listing));
    IS(tensorlend_listing_count(listing) == 0);
    tensorlend_listing_free(listing);
    OK(tensorlend_placement(client, "node7/end", &listing));
    entry = tensorlend_listing_at(listing, 0);
    IS(strcmp(entry->label, "node7") == 0 && entry->alive && !entry->cached);
    tensorlend_listing_free(listing);
    IS(pthread_join(thread, NULL) == 0);
    OK(tensorlend_delete(own, ".gateway/node/home", NULL));
    OK(tensorlend_delete(own, ".gateway/node/lost", NULL));
    OK(tensorlend_delete(own, ".gateway/node/node7", NULL));
    tensorlend_client_free(own);
}

/* NULL for each argument in turn. */
static void test_nothing(void) {
    tensorlend_caller *caller;
    tensorlend_server *server;
    tensorlend_request *request = NULL;
    tensorlend_lease *lease;
    tensorlend_draft *draft = NULL;
    FAILS(TENSORLEND_ARGUMENT, "client is NULL", tensorlend_caller_open(NULL, "s", 0, &caller));
    FAILS(TENSORLEND_ARGUMENT, "service is NULL", tensorlend_caller_open(client, NULL, 0, &caller));
    FAILS(TENSORLEND_ARGUMENT, "caller is NULL", tensorlend_caller_open(client, "s", 0, NULL));
    FAILS(TENSORLEND_ARGUMENT, "1 to 1024", tensorlend_caller_open(client, "s", 1025, &caller));
    FAILS(TENSORLEND_ARGUMENT, "caller is NULL", tensorlend_caller_call(NULL, &draft, 0, &lease));
    FAILS(TENSORLEND_ARGUMENT, "response is NULL", tensorlend_caller_call(NULL, &draft, 0, NULL));
    FAILS(TENSORLEND_ARGUMENT, "caller is NULL", tensorlend_caller_send(NULL, &draft, 0, NULL));
    FAILS(TENSORLEND_ARGUMENT, "caller is NULL", tensorlend_caller_recv(NULL, 0, &lease, NULL));
    FAILS(TENSORLEND_ARGUMENT, "service is NULL", tensorlend_serve(client, NULL, &server));
    FAILS(TENSORLEND_ARGUMENT, "server is NULL", tensorlend_server_recv(NULL, 0, &request));
    FAILS(TENSORLEND_ARGUMENT, "request is NULL", tensorlend_server_recv(NULL, 0, NULL));
    FAILS(TENSORLEND_ARGUMENT, "request is NULL", tensorlend_request_respond(&request, &draft));
    FAILS(TENSORLEND_ARGUMENT, "request is NULL", tensorlend_request_respond(NULL, &draft));
    FAILS(TENSORLEND_ARGUMENT, "request is NULL", tensorlend_request_fail(&request, "no"));
    FAILS(TENSORLEND_ARGUMENT, "request is NULL", tensorlend_request_soon(NULL));
    FAILS(TENSORLEND_ARGUMENT, "model is NULL", tensorlend_model_run(NULL, NULL, 0, &lease));
    FAILS(TENSORLEND_ARGUMENT, "request is NULL", tensorlend_model_request_input_from(NULL, "x", "y"));
    FAILS(TENSORLEND_ARGUMENT, "response is NULL", tensorlend_model_times(NULL, NULL, NULL));
    FAILS(TENSORLEND_ARGUMENT, "length is NULL", tensorlend_fetch_list(client, "node7/l", NULL));
    IS(tensorlend_request_value(NULL) == NULL && tensorlend_server_callers(NULL) == 0);
    IS(tensorlend_caller_service(NULL) == NULL && tensorlend_server_service(NULL) == NULL);
    IS(tensorlend_model_name(NULL) == NULL && !tensorlend_listing_is_cut(NULL));
    tensorlend_caller_close(NULL);
    tensorlend_server_close(NULL);
    tensorlend_request_free(NULL);
    tensorlend_model_close(NULL);
    tensorlend_model_request_free(NULL);
}

int main(void) {
    OK(tensorlend_connect(NULL, &client));
    test_requests();
    test_gone();
    test_models();
    test_remote();
    test_nothing();
    tensorlend_client_free(client);
    puts("all is well");
    return 0;
}
