/* Faults in lent memory, one in each run: the argument says which. */
#define _GNU_SOURCE
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static tensorlend_client *client;

static tensorlend_lease *lease_on(const char *name) {
    const float numbers[] = {1, 2};
    const uint64_t size = 2;
    tensorlend_lease *lease;
    OK(tensorlend_put(client, name, TENSORLEND_F32, 1, &size, numbers, NULL));
    OK(tensorlend_get(client, name, &lease));
    return lease;
}

static void write_to(const tensorlend_tensor *tensor) { *(volatile float *)(uintptr_t)tensor->data = 3; }

static void own_handler(int number) { _exit(100 + number); }

static bool has_handler(void) {
    struct sigaction action;
    IS(sigaction(SIGSEGV, NULL, &action) == 0);
    return action.sa_handler != SIG_DFL;
}

int main(int count, char **arguments) {
    IS(count == 2);
    const char *what = arguments[1];
    OK(tensorlend_connect(NULL, &client));
    if (strcmp(what, "own handler") == 0)
        IS(signal(SIGSEGV, own_handler) != SIG_ERR);
    if (strcmp(what, "off") != 0) {
        OK(tensorlend_explain_faults());
        OK(tensorlend_explain_faults());
    }
    IS(has_handler() == (strcmp(what, "off") != 0));
    if (strcmp(what, "member") == 0) {
        const uint64_t size = 2;
        tensorlend_draft *dataset, *member;
        tensorlend_lease *lease;
        OK(tensorlend_create_dataset(client, &dataset));
        OK(tensorlend_create(client, TENSORLEND_F32, 1, &size, &member));
        OK(tensorlend_dataset_add(dataset, "y", &member));
        OK(tensorlend_publish(&dataset, "batch", NULL));
        OK(tensorlend_get_value(client, "batch", &lease));
        write_to(tensorlend_lease_find(lease, "y"));
    } else if (strcmp(what, "draft") == 0) {
        const uint64_t size = 2;
        tensorlend_draft *draft;
        int status;
        OK(tensorlend_create(client, TENSORLEND_F32, 1, &size, &draft));
        const pid_t child = fork();
        if (child == 0) {
            *(volatile float *)tensorlend_draft_data(draft) = 3;
            _exit(0);
        }
        IS(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        raise(WTERMSIG(status));
    } else if (strcmp(what, "freed") == 0) {
        tensorlend_lease *lease = lease_on("weights");
        const tensorlend_tensor tensor = *tensorlend_lease_tensor(lease);
        tensorlend_lease_free(lease);
        write_to(&tensor);
    } else {
        write_to(tensorlend_lease_tensor(lease_on("weights")));
    }
    return 0;
}
