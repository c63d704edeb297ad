from semel_gear import Problem, Worker

worker = Worker()


@worker.action("greet")
def greet(context):
    name = context.params["name"]
    if not name:
        raise Problem("user_error", "no_name", "say a name")
    context.log("greeting " + name)
    return {"text": "hello " + name}


worker.run()
